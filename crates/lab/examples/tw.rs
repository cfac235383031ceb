fn main() {
    let a: Vec<String> = std::env::args().collect();
    let t: voltier_lab::twin::Twin = a[1].parse().unwrap();
    let e = if a.len() > 2 {
        voltier_lab::twin::Extent::Quick
    } else {
        voltier_lab::twin::Extent::Full
    };
    print!("{}", t.run(e).text());
}
