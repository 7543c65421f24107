//! Files that settings name: credentials, certificates, headers.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: reads the files that settings name")]

use std::fs::{self, File};
use std::io::{Error, Read, Result};
use std::path::Path;

/// The largest, in bytes: bundles of all public CAs have about 250 KiB.
const MOST: u64 = 1024 * 1024;

/// The bytes of a regular file of at most 1 MiB. What would never end (a device) or never answer (a pipe) is refused
/// before it is opened.
///
/// # Errors
/// The file can't be read, is none, or is too large.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    // It may grow while it is read.
    File::open(path)?.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(Error::other(format!("it is larger than {MOST} bytes; is it the right file?")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_no_small_regular_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("token"), "abc").unwrap();
        std::os::unix::fs::symlink(at("token"), at("link")).unwrap();
        assert_eq!(read_file(&at("link")).unwrap(), b"abc");
        File::create(at("large")).unwrap().set_len(MOST + 1).unwrap();
        assert!(read_file(&at("large")).unwrap_err().to_string().contains("larger than"));
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        for odd in [at("pipe"), "/dev/zero".into(), folder.path().to_owned()] {
            assert!(read_file(&odd).unwrap_err().to_string().contains("not a regular file"), "{}", odd.display());
        }
        assert!(read_file(&at("none")).is_err());
    }
}
