//! Listing the objects of a directory in the byte order of their keys.
//!
//! A page reads only the directories that can hold its keys, so listing everything page by page
//! costs about as much as listing it at once.

use std::fs;
use std::io;
use std::path::Path;

use super::{ObjectKey, ObjectMeta, is_absence, meta};

/// The first `limit` objects below `root` whose key begins with `prefix` and is greater than
/// `after`.
pub(super) fn objects(
    root: &Path,
    prefix: &str,
    after: &str,
    limit: usize,
) -> io::Result<Vec<ObjectMeta>> {
    let mut walk = Walk {
        prefix,
        after,
        limit,
        found: Vec::new(),
    };
    walk.visit(root, "")?;
    Ok(walk.found)
}

struct Walk<'a> {
    prefix: &'a str,
    after: &'a str,
    limit: usize,
    found: Vec<ObjectMeta>,
}

impl Walk<'_> {
    /// Visits `dir`, whose objects have keys that begin with `base` (empty, or ending in `/`).
    /// Recursion is as deep as a key has segments.
    fn visit(&mut self, dir: &Path, base: &str) -> io::Result<()> {
        let listing = match fs::read_dir(dir) {
            Ok(listing) => listing,
            // Removed meanwhile.
            Err(error) if is_absence(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in listing {
            let entry = entry?;
            let Ok(mut name) = entry.file_name().into_string() else {
                continue;
            };
            // Symbolic links are neither, so nothing outside of the root is listed.
            let kind = entry.file_type()?;
            if kind.is_dir() {
                // With the slash a directory sorts where its keys do: `a-b`, `a/b`, `a0`.
                name.push('/');
            } else if !kind.is_file() {
                continue;
            }
            let key = format!("{base}{name}");
            let stem = key.strip_suffix('/').unwrap_or(&key);
            if self.may_hold(&key) && ObjectKey::new(stem).is_ok() {
                names.push(key);
            }
        }
        names.sort_unstable();
        for key in names {
            if self.found.len() >= self.limit {
                break;
            }
            let segment = key.get(base.len()..).unwrap_or_default();
            let path = dir.join(segment);
            if key.ends_with('/') {
                self.visit(&path, &key)?;
            } else if let Ok(key) = ObjectKey::new(&key) {
                match fs::symlink_metadata(path) {
                    Ok(metadata) => self.found.push(meta(key, &metadata)),
                    Err(error) if is_absence(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Whether `key`, or for a directory anything in it, can belong to the page.
    fn may_hold(&self, key: &str) -> bool {
        if key.ends_with('/') {
            let in_prefix = key.starts_with(self.prefix) || self.prefix.starts_with(key);
            // Everything in the directory begins with its key, so it lies behind `after` if the key
            // does, and may lie behind it if `after` is in the directory itself.
            in_prefix && (key > self.after || self.after.starts_with(key))
        } else {
            key.starts_with(self.prefix) && key > self.after
        }
    }
}
