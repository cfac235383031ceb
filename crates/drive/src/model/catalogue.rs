//! Every drive that can be modelled.

use super::d3700::SSD_D3700;
use super::early::{HDD_ES2, SSD_IODRIVE, SSD_X25E};
use super::profile::{HDD_7200, Profile, SSD_PCIE, SSD_SATA, UnknownProfile};

/// Every profile.
pub static PROFILES: &[Profile] =
    &[HDD_7200, SSD_SATA, SSD_PCIE, SSD_D3700, SSD_IODRIVE, SSD_X25E, HDD_ES2];

impl Profile {
    /// The profile of this name.
    ///
    /// # Errors
    /// [`UnknownProfile`], whose message lists the names there are.
    pub fn find(name: &str) -> Result<&'static Profile, UnknownProfile> {
        let known = PROFILES.iter().find(|profile| profile.name == name);
        known.ok_or_else(|| UnknownProfile {
            name: name.to_owned(),
            known: PROFILES.iter().map(|each| each.name).collect::<Vec<_>>().join(", "),
        })
    }

    /// Every profile's name and description, for messages and listings.
    pub fn list() -> impl Iterator<Item = (&'static str, &'static str)> {
        PROFILES.iter().map(|profile| (profile.name, profile.description))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_found_by_name_and_an_unknown_one_lists_them() {
        for profile in PROFILES {
            assert_eq!(Profile::find(profile.name).unwrap().description, profile.description);
        }
        let message = Profile::find("floppy").unwrap_err().to_string();
        assert!(Profile::list().all(|(name, _)| message.contains(name)), "{message}");
        assert!(!message.contains('\n'));
    }
}
