//! The daemon's own page, in a browser: the daemon's other answers are tested with its commands.

use std::net::TcpListener;

use crate::browser::Browser;
use crate::support::arrays::with;
use crate::support::{Instance, MIB};

/// A port that nobody has now.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn the_page_of_the_daemon_shows_what_is_wrong_and_says_when_nobody_answers() {
    let Some(mut browser) = Browser::start() else { return };
    let address = format!("127.0.0.1:{}", port());
    let instance = Instance::new().with_variable("VOLTIER_METRICS", &address);
    let (disk, ssd) = (instance.drive("<b>disk", 64 * MIB), instance.drive("ssd", 32 * MIB));
    let members = ["m0", "m1", "m2"].map(|name| instance.drive(name, 16 * MIB));
    instance.run(&["create", "-p", &disk, "-s", &ssd, "v"]).ok();
    instance.run(&with(&["create", "a", "--level", "5", "--export", "none"], &members)).ok();
    instance.run(&["array", "fail", "a", "1"]).ok();
    let url = format!("http://{address}/");
    browser.window(1280, 900);
    let seen = browser.visit(&url, "document.title.startsWith('degraded')");
    // Browsers ask for an icon by themselves; there is none.
    let complaints = seen.complaints.iter().filter(|it| !it.contains("/favicon.ico"));
    assert_eq!(complaints.collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(seen.requests.iter().all(|it| it.starts_with(&url)), "{:?}", seen.requests);
    let text = browser.value("document.body.innerText").to_string();
    for words in ["member 1 is lost", "voltier array replace a 1 DEV", "<b>disk"] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    assert_eq!(browser.value("document.querySelectorAll('main b').length"), 0);
    assert_eq!(browser.value("document.querySelectorAll('a, button, input, form').length"), 0);
    for width in [1280, 700, 360] {
        browser.window(width, 900);
        let wide = browser.value("document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= u64::from(width), "{wide} pixels of {width}");
    }
    instance.run(&["stop"]).ok();
    browser.wait_for("document.getElementById('away').textContent.includes('not answered since')");
    assert_eq!(browser.value("document.title"), "no answer: Voltier");
    instance.run(&["start"]);
    // The first look of the new daemon may see arrays that start.
    browser.wait_for("document.title.startsWith('degraded')");
    assert_eq!(browser.value("document.getElementById('away').hidden"), true);
}
