//! What the owner of a Ceph RBD image reports in the image's metadata: how far the image is behind what was
//! acknowledged. Whoever takes the image over says by it what is lost.

use serde::{Deserialize, Serialize};

use crate::units::format_size;

/// What the owner does with the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageUse {
    /// Serves it.
    Serving,
    /// Has let go of it, and still has the volume on record.
    Stopped,
    /// Has deleted the volume.
    Deleted,
    /// Lost it to a host that has given up what the image lacks.
    GivenUp,
}

/// A report. Programs of other versions may know more or fewer fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageReport {
    /// The volume.
    pub volume: String,
    /// Name of the host.
    pub host: String,
    /// What the host does with the image.
    pub state: ImageUse,
    /// When that was so, by the clock of the host, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The image has every write that was acknowledged before, by the same clock; absent if that is not known.
    pub complete_unix_ms: Option<u64>,
    /// Bytes that the image lacks, at most; absent if that is not known.
    pub unshipped_bytes: Option<u64>,
    /// Whether a cache may acknowledge what the image lacks.
    pub writes_back: bool,
    /// Whether what the image lacks is sure to be the newest.
    pub ordered: bool,
    /// The bound of what the image may lack, as it was set; `off` without one.
    pub max_unshipped: String,
}

/// A time in words.
fn words(ms: u64) -> String {
    match ms {
        0..600_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        _ => format!("{} minutes", ms.div_ceil(60_000)),
    }
}

impl ImageReport {
    /// Reads a report; `None` of anything else.
    pub(crate) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The form in which it is written.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("a report has only plain values")
    }

    /// Whether the image may lack something that was acknowledged.
    fn lacks(&self) -> bool {
        match self.state {
            ImageUse::Serving | ImageUse::GivenUp => {
                self.writes_back || self.unshipped_bytes != Some(0)
            }
            ImageUse::Stopped => self.unshipped_bytes != Some(0),
            ImageUse::Deleted => false,
        }
    }

    /// Whether the image may lack something, and nobody has given that up.
    pub(crate) fn may_lack(&self) -> bool {
        self.state != ImageUse::GivenUp && self.lacks()
    }

    /// How much the image lacks, in words.
    fn size(&self) -> String {
        match self.unshipped_bytes {
            Some(bytes) => format!("up to {}", format_size(bytes)),
            None => "what nobody knows".to_owned(),
        }
    }

    /// Why the image is not simply taken, in words that stand behind its name, if something is lost by that and
    /// need not be. What a host that serves has is lost when it is cut off; that is what a takeover is for.
    pub(crate) fn better_way(&self) -> Option<String> {
        let Self { volume, host, .. } = self;
        match self.state {
            ImageUse::Stopped if self.lacks() => Some(format!(
                "lacks {} that {volume} on {host} has on its SSD, and that host has stopped it in order: start it \
                 there, and `voltier flush {volume}` or delete it",
                self.size()
            )),
            ImageUse::Serving if self.lacks() && !self.ordered => Some(format!(
                "may lack writes of {volume} on {host}, in no order (ordered=off), so that a file system on it may \
                 be damaged: bring that host back, or stop the volume there if it lives"
            )),
            _ => None,
        }
    }

    /// Why a new volume is not simply made of the image, in words that stand behind its name.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.may_lack().then(|| {
            let Self { volume, host, .. } = self;
            format!(
                "may lack what {volume} on {host} has acknowledged and has on its SSD: delete the volume there, or \
                 `voltier takeover` takes the image over and says what is lost"
            )
        })
    }

    /// What is lost if the image is all that is left of the volume, in a sentence.
    pub fn loss(&self) -> String {
        let Self { volume, host, .. } = self;
        if !self.lacks() {
            return match self.state {
                ImageUse::Serving | ImageUse::GivenUp => format!(
                    "nothing is lost: {volume} on {host} acknowledged only what the image has"
                ),
                _ => format!(
                    "nothing is lost: the image has all that {volume} on {host} acknowledged"
                ),
            };
        }
        if !self.ordered {
            return format!(
                "lost is {} when it last reported, of what {volume} on {host} had acknowledged, and which of its \
                 writes those are nobody knows (not in order): check what the image holds before it is used",
                self.size()
            );
        }
        let bound = match self.max_unshipped.as_str() {
            "" | "off" => String::new(),
            bound => format!(", never more than max_unshipped={bound}"),
        };
        let since = match self.complete_unix_ms.map(|until| self.unix_ms.saturating_sub(until)) {
            // The millisecond of the report itself.
            Some(0 | 1) => "after its last report".to_owned(),
            Some(ms) => format!("in the {} before its last report, and after it", words(ms)),
            None => "before its last report, nobody knows for how long, and after it".to_owned(),
        };
        let size = match self.unshipped_bytes {
            Some(0) => bound,
            Some(bytes) => format!(" ({} when it reported{bound})", format_size(bytes)),
            None => " (how much, nobody knows)".to_owned(),
        };
        format!(
            "lost is what {volume} on {host} acknowledged {since}{size}; all before is on the image"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> ImageReport {
        ImageReport {
            volume: "v".into(),
            host: "blue".into(),
            state: ImageUse::Serving,
            unix_ms: 10_000,
            complete_unix_ms: Some(7_500),
            unshipped_bytes: Some(3 << 20),
            writes_back: true,
            ordered: true,
            max_unshipped: "5s,64M".into(),
        }
    }

    #[test]
    fn a_report_is_read_as_it_was_written_and_anything_else_is_none() {
        let report = report();
        assert!(report.text().len() < 1023, "longer than is read again");
        assert_eq!(ImageReport::read(&report.text()), Some(report.clone()));
        let later = report.text().replacen('{', "{\"later\":1,", 1);
        assert_eq!(ImageReport::read(&later), Some(report), "of a later version");
        for text in ["", "{}", "x", "[1]", "{\"volume\":\"v\"}"] {
            assert_eq!(ImageReport::read(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_lost_is_said_as_far_as_it_is_known() {
        let said = report().loss();
        assert_eq!(
            said,
            "lost is what v on blue acknowledged in the 2.5 s before its last report, and after it (3M when it \
             reported, never more than max_unshipped=5s,64M); all before is on the image"
        );
        let clean =
            ImageReport { unshipped_bytes: Some(0), complete_unix_ms: Some(10_000), ..report() };
        let said = clean.loss();
        assert!(said.contains("acknowledged after its last report, never more than"), "{said}");
        let unordered = ImageReport { ordered: false, ..report() };
        assert!(unordered.loss().contains("nobody knows (not in order)"));
        let unknown = ImageReport { unshipped_bytes: None, complete_unix_ms: None, ..report() };
        let said = unknown.loss();
        assert!(said.contains("nobody knows for how long, and after it (how much, nobody knows)"));
        let given_up = ImageReport { state: ImageUse::GivenUp, ..report() };
        assert_eq!((given_up.loss(), given_up.may_lack()), (report().loss(), false));
        for sure in [
            ImageReport { writes_back: false, unshipped_bytes: Some(0), ..report() },
            ImageReport { state: ImageUse::Stopped, unshipped_bytes: Some(0), ..report() },
            ImageReport { state: ImageUse::Deleted, ..report() },
        ] {
            assert!(sure.loss().starts_with("nothing is lost"), "{sure:?}");
        }
        assert!(ImageReport { state: ImageUse::Stopped, ..report() }.may_lack());
    }
}
