//! What lies in the policy directories: which file is the module of which name, and whether it changed.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: reads directories of modules")]

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::LoadError;
use crate::golden::{self, Case};
use crate::settings::ModuleSettings;

/// Longest settings file, in bytes.
const MAX_SETTINGS: u64 = 256 * 1024;
/// Longest file of golden cases, in bytes.
const MAX_GOLDEN: u64 = 8 * 1024 * 1024;

/// What tells two states of a file apart without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// A module's file with the settings and the golden cases beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    module: Stamp,
    settings: Option<Stamp>,
    golden: Option<Stamp>,
}

/// The candidates of each name, the one that counts first. Names that are no legal names are listed too, so that they
/// can be refused and not overlooked.
pub(crate) type Listing = BTreeMap<String, Vec<Found>>;

/// Lists `dirs`; of files with the same name the one in the later directory counts. A directory that is not there holds
/// nothing. One that can't be read is an error: its modules are then not taken for removed.
pub(crate) fn list(dirs: &[PathBuf]) -> Result<Listing, (PathBuf, io::Error)> {
    let mut listing = Listing::new();
    for dir in dirs.iter().rev() {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err((dir.clone(), error)),
        };
        for entry in entries {
            let path = entry.map_err(|error| (dir.clone(), error))?.path();
            let Some(name) = module_name(&path) else { continue };
            // A file may go between listing and looking, and a link may lead nowhere: both are not there.
            if let Some(found) = look(&path) {
                listing.entry(name).or_default().push(found);
            }
        }
    }
    Ok(listing)
}

/// The stem of `name.wasm`. Hidden files (an editor's, a volume's `..data`) are no modules.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem = file.strip_suffix(".wasm")?;
    (!file.starts_with('.')).then(|| stem.to_owned())
}

fn look(path: &Path) -> Option<Found> {
    let module = fs::metadata(path).ok()?;
    if module.is_dir() {
        return None;
    }
    let beside = |extension: &str| fs::metadata(path.with_extension(extension)).ok().map(|meta| Stamp::of(&meta));
    let (settings, golden) = (beside("toml"), beside(GOLDEN));
    Some(Found { path: path.to_owned(), module: Stamp::of(&module), settings, golden })
}

/// Whether the file is still as it was found.
pub(crate) fn unchanged(found: &Found) -> bool {
    look(&found.path).as_ref() == Some(found)
}

/// Reads a module, at most `max` bytes of it.
pub(crate) fn read_module(path: &Path, max: u64) -> Result<Vec<u8>, LoadError> {
    read(path, max)?.map_err(|size| LoadError::TooLarge { size, max })
}

/// Reads the settings beside a module; the defaults if there are none.
pub(crate) fn read_settings(module: &Path) -> Result<ModuleSettings, LoadError> {
    let path = module.with_extension("toml");
    match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ModuleSettings::default()),
        _ => {}
    }
    let shown = path.display();
    let bytes = read(&path, MAX_SETTINGS)?
        .map_err(|size| LoadError::BadSettings { detail: format!("{shown}: {size} bytes, at most {MAX_SETTINGS}") })?;
    let text = String::from_utf8(bytes)
        .map_err(|_| LoadError::BadSettings { detail: format!("{shown}: it is not UTF-8 text") })?;
    ModuleSettings::from_toml(&text).map_err(|error| match error {
        LoadError::BadSettings { detail } => LoadError::BadSettings { detail: format!("{shown}: {detail}") },
        other => other,
    })
}

/// `NAME.golden.json` beside `NAME.wasm`.
const GOLDEN: &str = "golden.json";

/// Reads the golden cases beside a module; none if there is no such file.
pub(crate) fn read_golden(module: &Path) -> Result<Vec<Case>, LoadError> {
    let path = module.with_extension(GOLDEN);
    match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        _ => {}
    }
    let bad = |detail: String| LoadError::BadGolden { detail: format!("{}: {detail}", path.display()) };
    let bytes = read(&path, MAX_GOLDEN)?.map_err(|size| bad(format!("{size} bytes, at most {MAX_GOLDEN}")))?;
    let text = String::from_utf8(bytes).map_err(|_| bad("it is not UTF-8 text".to_owned()))?;
    golden::read(&text).map_err(bad)
}

/// The bytes of a regular file, or its size if that is over `max`. Anything else (a pipe would block) is not opened.
fn read(path: &Path, max: u64) -> Result<Result<Vec<u8>, u64>, LoadError> {
    let unreadable = |detail: String| LoadError::Unreadable { path: path.display().to_string(), detail };
    let meta = fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
    if !meta.is_file() {
        return Err(unreadable("it is not a regular file".to_owned()));
    }
    if meta.len() > max {
        return Ok(Err(meta.len()));
    }
    let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let mut bytes = Vec::new();
    // It may grow while it is read: never take in more than the cap and one.
    file.take(max + 1).read_to_end(&mut bytes).map_err(|error| unreadable(error.to_string()))?;
    let size = bytes.len() as u64;
    Ok(if size > max { Err(size) } else { Ok(bytes) })
}

/// Which directory a path leads to now, if any: a watch on one that was replaced hears nothing more.
pub(crate) fn identity(dir: &Path) -> Option<(u64, u64)> {
    fs::metadata(dir).ok().map(|meta| (meta.dev(), meta.ino()))
}
