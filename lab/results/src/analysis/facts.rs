//! Facts of targets and machines that analysis reads by name (`docs/formats/run.md` lists them).

use crate::result::{Run, TargetInfo};

/// A run's facts, asked by name.
pub(crate) struct Facts<'a> {
    run: &'a Run,
}

impl<'a> Facts<'a> {
    pub(crate) fn new(run: &'a Run) -> Facts<'a> {
        Facts { run }
    }

    pub(crate) fn target(&self, name: &str) -> Option<&'a TargetInfo> {
        self.run.manifest.targets.iter().find(|target| target.name == name)
    }

    pub(crate) fn text(&self, target: &str, fact: &str) -> Option<&'a str> {
        let value = self.target(target)?.facts.get(fact)?;
        (!value.is_empty()).then_some(value.as_str())
    }

    pub(crate) fn number(&self, target: &str, fact: &str) -> Option<f64> {
        positive(self.text(target, fact)?)
    }

    /// A number among the facts of the machine.
    pub(crate) fn machine(&self, fact: &str) -> Option<f64> {
        positive(self.run.manifest.environment.facts.get(fact)?)
    }

    /// The target that lies behind a cached one.
    pub(crate) fn backing(&self, target: &str) -> Option<&'a str> {
        self.tier(target, "backing", "hdd")
    }

    /// The target that is the SSD of a cached one.
    pub(crate) fn fast_tier(&self, target: &str) -> Option<&'a str> {
        self.tier(target, "fast_tier", "ssd")
    }

    /// Named by a fact; of a target called `accelerated` its usual neighbours.
    fn tier(&self, target: &str, fact: &str, usual: &str) -> Option<&'a str> {
        let named = self.text(target, fact);
        let usual = || (target == "accelerated").then_some(usual);
        let name = named.or_else(usual)?;
        self.target(name).map(|tier| tier.name.as_str())
    }

    /// The rate of the link of a target, in bytes of payload per second.
    pub(crate) fn link_rate(&self, target: &str) -> Option<f64> {
        if let Some(rate) = self.number(target, "link_bytes_per_second") {
            return Some(rate);
        }
        // "8.0 GT/s PCIe" and "4".
        let speed = self.text(target, "link_speed");
        if let Some((transfers, rest)) = speed.and_then(|text| text.trim().split_once(' '))
            && rest.starts_with("GT/s")
        {
            let lanes = self.number(target, "link_width")?;
            let transfers = positive(transfers)?;
            let coding = if transfers < 8.0 { 8.0 / 10.0 } else { 128.0 / 130.0 };
            return Some(transfers * 1e9 * lanes * coding / 8.0);
        }
        let text = self.text(target, "interface")?.replace(' ', "");
        let sata = text.to_ascii_uppercase();
        let rest = sata.strip_prefix("SATA")?;
        let gigabits = rest.trim_start_matches(['-', ',']).split_once("GB").map(|(n, _)| n)?;
        // 8b/10b: ten bits on the wire for a byte.
        Some(positive(gigabits)? * 1e9 / 10.0)
    }
}

/// A number above zero as it may stand in a fact.
fn positive(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|value| value.is_finite() && *value > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample;

    #[test]
    fn link_rates_are_read_in_the_spellings_of_sysfs_and_of_data_sheets() {
        let mut run = sample::run();
        let mut rate = |facts: &[(&str, &str)]| {
            let pairs = facts.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            run.manifest.targets[0].facts = pairs.collect();
            Facts::new(&run).link_rate("hdd")
        };
        assert_eq!(rate(&[("interface", "SATA 3Gb/s")]), Some(3e8));
        assert_eq!(rate(&[("interface", "SATA")]), None);
        assert_eq!(rate(&[("link_bytes_per_second", "12500000")]), Some(12.5e6));
        let pcie = rate(&[("link_speed", "8.0 GT/s PCIe"), ("link_width", "4")]).unwrap();
        assert!((pcie - 3.938e9).abs() < 1e6);
        assert_eq!(rate(&[("link_speed", "nonsense")]), None);
    }
}
