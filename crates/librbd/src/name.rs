//! How an image is named: `rbd:POOL[/NAMESPACE]/IMAGE[@CONF][?id=USER]`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The word in front of the name.
const PREFIX: &str = "rbd:";
/// The configuration of the cluster where none is named.
pub const DEFAULT_CONF: &str = "/etc/ceph/ceph.conf";
/// The user where none is named.
pub const DEFAULT_USER: &str = "admin";
/// Longest name of a pool, namespace, image or user, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// An image of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageName {
    /// The pool.
    pub pool: String,
    /// The namespace of the pool; empty for the one without a name.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The configuration of the cluster; `None` for [`DEFAULT_CONF`].
    pub conf: Option<PathBuf>,
    /// The user without `client.`; `None` for [`DEFAULT_USER`].
    pub user: Option<String>,
}

/// Why a text names no image, in one line that says what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NameError(&'static str);

impl ImageName {
    /// The configuration of the cluster.
    pub fn conf(&self) -> &Path {
        self.conf.as_deref().unwrap_or(Path::new(DEFAULT_CONF))
    }

    /// The user without `client.`.
    pub fn user(&self) -> &str {
        self.user.as_deref().unwrap_or(DEFAULT_USER)
    }

    /// Pool, namespace and image, as Ceph's own tools name them.
    pub fn place(&self) -> String {
        match self.namespace.as_str() {
            "" => format!("{}/{}", self.pool, self.image),
            namespace => format!("{}/{namespace}/{}", self.pool, self.image),
        }
    }

    /// What the image is known by in this process: its place and the configuration of its cluster.
    pub(crate) fn key(&self) -> String {
        format!("{}@{}", self.place(), self.conf().display())
    }
}

impl FromStr for ImageName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let form =
            NameError("write rbd:POOL/IMAGE, rbd:POOL/NAMESPACE/IMAGE or rbd:POOL/IMAGE@CONF");
        let Some(rest) = text.strip_prefix(PREFIX) else { return Err(form) };
        if text.chars().any(char::is_control) {
            return Err(NameError("a name has no control characters"));
        }
        let (rest, user) = match rest.rsplit_once("?id=") {
            Some((rest, user)) => (rest, Some(user)),
            None => (rest, None),
        };
        if user.is_some_and(|user| !is_name(user) || user.starts_with("client.")) {
            return Err(NameError("a user stands without `client.` behind `?id=`: ?id=voltier"));
        }
        let (place, conf) = match rest.split_once('@') {
            Some((place, conf)) => (place, Some(conf)),
            None => (rest, None),
        };
        // A snapshot stands at this place in Ceph's own names, and a path is one by its slash.
        if conf.is_some_and(|conf| !conf.contains('/')) {
            return Err(NameError(
                "a snapshot takes no writes: name the image; a configuration is given by its path, as \
                 @/etc/ceph/other.conf",
            ));
        }
        let names: Vec<&str> = place.split('/').collect();
        let (pool, namespace, image) = match names[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return Err(form),
        };
        if !is_name(pool) || !is_name(image) || namespace.len() > NAME_BYTES_MAX {
            return Err(form);
        }
        let user = user.filter(|user| *user != DEFAULT_USER);
        Ok(Self {
            pool: pool.to_owned(),
            namespace: namespace.to_owned(),
            image: image.to_owned(),
            conf: conf.map(PathBuf::from).filter(|conf| conf != Path::new(DEFAULT_CONF)),
            user: user.map(ToOwned::to_owned),
        })
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_BYTES_MAX
}

impl fmt::Display for ImageName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{PREFIX}{}", self.place())?;
        if let Some(conf) = &self.conf {
            write!(out, "@{}", conf.display())?;
        }
        match &self.user {
            Some(user) => write!(out, "?id={user}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written_in_one_way() {
        for (text, written) in [
            ("rbd:p/i", "rbd:p/i"),
            ("rbd:p/n/i", "rbd:p/n/i"),
            ("rbd:p/i@/etc/ceph/ceph.conf", "rbd:p/i"),
            ("rbd:p/i@/a/b.conf", "rbd:p/i@/a/b.conf"),
            ("rbd:p/n/i@./b?id=x", "rbd:p/n/i@./b?id=x"),
            ("rbd:p/i?id=admin", "rbd:p/i"),
            ("rbd:.rgw root/i m", "rbd:.rgw root/i m"),
        ] {
            let name: ImageName = text.parse().unwrap();
            assert_eq!(name.to_string(), written);
            assert_eq!(written.parse(), Ok(name));
        }
        let name: ImageName = "rbd:p/n/i?id=x".parse().unwrap();
        assert_eq!((name.place().as_str(), name.user()), ("p/n/i", "x"));
        assert_eq!(name.conf(), Path::new(DEFAULT_CONF));
    }

    #[test]
    fn what_names_no_image_is_refused_in_one_line() {
        for (text, words) in [
            ("rbd:", "write rbd:"),
            ("rbd:p", "write rbd:"),
            ("rbd:p/", "write rbd:"),
            ("rbd:/i", "write rbd:"),
            ("rbd:p//i", "write rbd:"),
            ("rbd:p/n/i/x", "write rbd:"),
            ("rbd:p/i@snap", "a snapshot takes no writes"),
            ("rbd:p/i@", "a snapshot takes no writes"),
            ("rbd:p/i?id=", "?id=voltier"),
            ("rbd:p/i?id=client.x", "?id=voltier"),
            ("rbd:p/i\n", "control characters"),
        ] {
            let refused = text.parse::<ImageName>().unwrap_err().to_string();
            assert!(refused.contains(words) && !refused.contains('\n'), "{text}: {refused}");
        }
    }
}
