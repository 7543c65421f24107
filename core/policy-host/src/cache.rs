//! Compiled modules, kept between runs.
//!
//! Loading machine code is as good as running it, so a file is used only if nobody but us can have written it: the
//! directory is ours, with mode 0700, made by us. A checksum tells torn and rotten files from whole ones. What does not
//! fit is deleted and compiled again; a cache that can't be used costs time and nothing else.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: owns a directory of files")]

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

/// Most compiled modules kept; the oldest go first.
const MAX_FILES: usize = 64;
/// Bytes of the checksum before the code.
const CHECKSUM: usize = 32;

/// A private directory of compiled modules.
#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
    /// Our user, as the owner of files that we make.
    owner: u32,
    engine: [u8; 32],
    serial: AtomicU64,
}

impl Cache {
    /// Opens or makes the private directory below `parent`. The error says why it can't be trusted or made.
    pub(crate) fn open(parent: &Path, engine: &Engine) -> Result<Self, String> {
        let dir = parent.join("compiled-policies");
        let words = |error: io::Error| format!("{}: {error}", dir.display());
        fs::create_dir_all(parent).map_err(words)?;
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(words(error)),
            _ => {}
        }
        let owner = our_user(&dir).map_err(words)?;
        let cache = Self { dir, owner, engine: compatibility(engine), serial: AtomicU64::new(0) };
        cache.check_dir()?;
        Ok(cache)
    }

    /// The compiled form of `component`, from the cache or made now.
    pub(crate) fn load(&self, engine: &Engine, component: &[u8]) -> wasmtime::Result<Component> {
        if let Err(error) = self.check_dir() {
            tracing::warn!(%error, "compile cache not used");
            return Component::new(engine, component);
        }
        let path = self.dir.join(self.key(component));
        if let Some(ready) = self.read(engine, &path) {
            return Ok(ready);
        }
        let ready = Component::new(engine, component)?;
        match ready.serialize().map_err(|error| format!("{error:#}")).and_then(|code| self.write(&path, &code)) {
            Ok(()) => self.prune(),
            Err(error) => tracing::warn!(%error, "compiled policy not kept"),
        }
        Ok(ready)
    }

    /// A directory that another user could have changed is not ours, whatever it once was.
    fn check_dir(&self) -> Result<(), String> {
        let meta = fs::symlink_metadata(&self.dir).map_err(|error| format!("{}: {error}", self.dir.display()))?;
        if !meta.is_dir() || meta.uid() != self.owner || meta.mode() & 0o077 != 0 {
            let (dir, mode) = (self.dir.display(), meta.mode() & 0o777);
            return Err(format!("{dir} must be a directory of ours with mode 0700 (it has {mode:04o}): remove it"));
        }
        Ok(())
    }

    fn key(&self, component: &[u8]) -> String {
        let mut hash = Sha256::new();
        hash.update(self.engine);
        hash.update(component);
        format!("{}.cwasm", hex::encode(hash.finalize()))
    }

    fn read(&self, engine: &Engine, path: &Path) -> Option<Component> {
        let code = match self.read_checked(path) {
            Ok(code) => code?,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "compiled policy dropped, compiling again");
                let _ = fs::remove_file(path);
                return None;
            }
        };
        // SAFETY: `deserialize` runs whatever machine code it is given, so the bytes must be what `serialize` made.
        // They come from a regular file of our own user, not writable by others, in a directory with mode 0700 of our
        // own user (checked just now), where `write` below alone puts files; the checksum shows that they are whole.
        // They were read into memory, so that no later change of the file can reach them. A file of another engine
        // version or configuration is refused by `deserialize` itself, and has another key besides.
        #[allow(unsafe_code, reason = "see SAFETY")]
        let loaded = unsafe { Component::deserialize(engine, &code) };
        match loaded {
            Ok(component) => Some(component),
            Err(error) => {
                tracing::warn!(path = %path.display(), error = %format!("{error:#}"), "compiled policy dropped, compiling again");
                let _ = fs::remove_file(path);
                None
            }
        }
    }

    /// The code in a file, `None` if there is no file, or why it is not to be trusted.
    fn read_checked(&self, path: &Path) -> Result<Option<Vec<u8>>, String> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
            Ok(meta) if !meta.is_file() => return Err("it is not a regular file".to_owned()),
            Ok(_) => {}
        }
        let mut file = File::open(path).map_err(|error| error.to_string())?;
        let meta = file.metadata().map_err(|error| error.to_string())?;
        if meta.uid() != self.owner || meta.mode() & 0o022 != 0 {
            return Err("it is not ours, or others may write it".to_owned());
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() < CHECKSUM {
            return Err("it is too short".to_owned());
        }
        let code = bytes.split_off(CHECKSUM);
        if Sha256::digest(&code).as_slice() != bytes {
            return Err("its checksum does not fit".to_owned());
        }
        Ok(Some(code))
    }

    /// Writes aside, to disk, then renames: a file under its final name is always whole.
    fn write(&self, path: &Path, code: &[u8]) -> Result<(), String> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let aside = self.dir.join(format!("{}.{serial}.tmp", std::process::id()));
        let put = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
            file.write_all(&Sha256::digest(code))?;
            file.write_all(code)?;
            file.sync_all()?;
            fs::rename(&aside, path)
        };
        put().map_err(|error| {
            let _ = fs::remove_file(&aside);
            format!("{}: {error}", path.display())
        })
    }

    /// Keeps the newest files. Others may prune at the same time, so a file that is gone is no error.
    fn prune(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        let mut files: Vec<(SystemTime, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let path = entry.path();
                let compiled = path.extension().is_some_and(|extension| extension == "cwasm");
                compiled.then_some((entry.metadata().ok()?.modified().ok()?, path))
            })
            .collect();
        files.sort();
        let surplus = files.len().saturating_sub(MAX_FILES);
        for (_, path) in &files[..surplus] {
            let _ = fs::remove_file(path);
        }
    }
}

/// Our user: the owner of a file that we make.
fn our_user(dir: &Path) -> io::Result<u32> {
    let probe = dir.join(format!(".owner.{}.{:?}", std::process::id(), std::thread::current().id()));
    let _ = fs::remove_file(&probe);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&probe)?;
    let owner = file.metadata()?.uid();
    fs::remove_file(&probe)?;
    Ok(owner)
}

/// All that decides whether this engine can run what another compiled, in one hash that is the same in every process.
fn compatibility(engine: &Engine) -> [u8; 32] {
    struct Feed(Sha256);
    impl Hasher for Feed {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut feed = Feed(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut feed);
    feed.0.finalize().into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn setup() -> (tempfile::TempDir, Engine, Cache, Vec<u8>) {
        let parent = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let cache = Cache::open(parent.path(), &engine).unwrap();
        (parent, engine, cache, wat::parse_str("(component)").unwrap())
    }

    #[test]
    fn keeps_what_it_compiled() {
        let (_parent, engine, cache, wasm) = setup();
        let path = cache.dir.join(cache.key(&wasm));
        cache.load(&engine, &wasm).unwrap();
        assert!(cache.read(&engine, &path).is_some());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn drops_what_is_rotten_foreign_or_writable() {
        let (_parent, engine, cache, wasm) = setup();
        let path = cache.dir.join(cache.key(&wasm));
        let spoil: [fn(&Path); 5] = [
            |path| fs::write(path, b"short").unwrap(),
            |path| fs::write(path, [7; 4096]).unwrap(),
            |path| {
                let mut bytes = fs::read(path).unwrap();
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                fs::write(path, bytes).unwrap();
            },
            |path| fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap(),
            |path| {
                let aside = path.with_extension("moved");
                fs::rename(path, &aside).unwrap();
                std::os::unix::fs::symlink(&aside, path).unwrap();
            },
        ];
        for spoil in spoil {
            cache.load(&engine, &wasm).unwrap();
            spoil(&path);
            assert!(cache.read(&engine, &path).is_none());
            assert!(!path.exists(), "it is deleted");
            cache.load(&engine, &wasm).unwrap();
            assert!(cache.read(&engine, &path).is_some(), "and made again");
        }
    }

    #[test]
    fn what_another_engine_compiled_has_another_name() {
        let (parent, engine, cache, wasm) = setup();
        cache.load(&engine, &wasm).unwrap();
        let other = Engine::new(wasmtime::Config::new().consume_fuel(true)).unwrap();
        let others = Cache::open(parent.path(), &other).unwrap();
        assert_ne!(cache.key(&wasm), others.key(&wasm));
        others.load(&other, &wasm).unwrap();
        assert_eq!(fs::read_dir(&cache.dir).unwrap().count(), 2, "and neither drops the other's");
        assert!(cache.read(&engine, &cache.dir.join(cache.key(&wasm))).is_some());
    }

    #[test]
    fn a_directory_that_others_may_enter_is_not_used() {
        let (parent, engine, cache, wasm) = setup();
        fs::set_permissions(&cache.dir, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Cache::open(parent.path(), &engine).unwrap_err().contains("0755"));
        cache.load(&engine, &wasm).unwrap();
        assert!(!cache.dir.join(cache.key(&wasm)).exists());
    }

    #[test]
    fn a_foreign_checksummed_file_of_another_engine_is_compiled_again() {
        let (_parent, engine, cache, wasm) = setup();
        let path = cache.dir.join(cache.key(&wasm));
        cache.write(&path, b"no machine code at all").unwrap();
        assert!(cache.read(&engine, &path).is_none());
        assert!(!path.exists());
    }

    #[test]
    fn does_not_grow_without_end() {
        let (_parent, _engine, cache, _wasm) = setup();
        for number in 0..MAX_FILES + 5 {
            cache.write(&cache.dir.join(format!("{number}.cwasm")), b"x").unwrap();
        }
        cache.prune();
        assert_eq!(fs::read_dir(&cache.dir).unwrap().count(), MAX_FILES);
    }
}
