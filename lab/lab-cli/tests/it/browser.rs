//! A headless Chromium, driven over its debugging pipe: no port, no driver program.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// The browser; it ends with this.
pub(crate) struct Browser {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    events: VecDeque<Value>,
    session: String,
    next: u64,
    _profile: tempfile::TempDir,
}

/// Observations of a page while it loads.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Messages of the page to the console, and exceptions.
    pub(crate) complaints: Vec<String>,
    /// Addresses that the page asked for, its own aside.
    pub(crate) requests: Vec<String>,
}

impl Browser {
    /// Starts it; `None` where it is not installed, which is said aloud. On CI it must be there.
    pub(crate) fn start() -> Option<Browser> {
        let programs = ["chromium", "chromium-browser", "google-chrome"];
        let is_there = |name: &&&str| {
            Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success())
        };
        let Some(program) = programs.iter().find(is_there) else {
            assert!(std::env::var_os("CI").is_none(), "chromium is missing: scripts/deps.sh test");
            eprintln!("left out: chromium is missing");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        let folder = format!("--user-data-dir={}", profile.path().display());
        // The browser reads commands from descriptor 3 and answers on 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null", program])
            .args(["--headless", "--no-sandbox", "--remote-debugging-pipe", &folder])
            .args(["--no-first-run", "--disable-extensions", "--disable-background-networking"])
            .args(["--enable-unsafe-swiftshader", "--use-gl=angle", "--use-angle=swiftshader"])
            .args(["--disable-dev-shm-usage", "--hide-scrollbars", "about:blank"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, answers) =
            (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser = Browser {
            child,
            commands,
            answers,
            events: VecDeque::new(),
            session: String::new(),
            next: 0,
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = target["targetId"].as_str().unwrap().to_owned();
        let attach = json!({ "targetId": target, "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Sends a command and waits for its answer; events that come meanwhile are kept.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.as_mut().unwrap().write_all(&bytes).unwrap();
        loop {
            let message = self.read();
            if message["id"] == self.next {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            if message.get("method").is_some() {
                self.events.push_back(message);
            }
        }
    }

    fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.answers.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser has ended");
        serde_json::from_slice(&bytes).unwrap()
    }

    /// How wide and high the window is; below 600 it is a phone with a touch screen.
    pub(crate) fn window(&mut self, width: u32, height: u32) {
        let is_phone = width < 600;
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        self.call("Emulation.setTouchEmulationEnabled", json!({ "enabled": is_phone }));
    }

    /// Opens a file and waits until its charts are drawn.
    #[track_caller]
    pub(crate) fn open(&mut self, page: &Path) -> Seen {
        let url = format!("file://{}", page.display());
        self.visit(&url, "document.documentElement?.dataset?.drawn !== undefined")
    }

    /// Opens an address and waits until an expression is true there.
    #[track_caller]
    pub(crate) fn visit(&mut self, url: &str, condition: &str) -> Seen {
        self.events.clear();
        self.call("Page.navigate", json!({ "url": url }));
        self.wait_for(condition);
        let mut seen = Seen::default();
        for event in std::mem::take(&mut self.events) {
            let detail = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" => seen.complaints.push(detail.to_string()),
                // The browser's advice on speed is no complaint.
                "Log.entryAdded" if detail["entry"]["level"] == "error" => {
                    seen.complaints.push(detail.to_string());
                }
                "Runtime.consoleAPICalled" if detail["type"] == "error" => {
                    seen.complaints.push(detail["args"].to_string());
                }
                "Network.requestWillBeSent" => {
                    let asked = detail["request"]["url"].as_str().unwrap_or_default();
                    let is_inside = ["data:", "blob:"].iter().any(|way| asked.starts_with(way));
                    if asked != url && !is_inside {
                        seen.requests.push(asked.to_owned());
                    }
                }
                _ => {}
            }
        }
        seen
    }

    /// Waits until an expression is true, some minutes at most.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, condition: &str) {
        for _ in 0..6000 {
            if self.value(condition) == true {
                return;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(20));
        }
        panic!("{condition} does not come true");
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.session.clear();
            self.call("Browser.close", json!({}));
        }
        // A closed pipe ends it too.
        self.commands.take();
        let _ = self.child.wait();
    }
}
