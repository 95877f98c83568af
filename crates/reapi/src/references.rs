//! What an action result refers to: all of it has to be there for the result to be returned.
//!
//! Messages are read field by field. Decoded as a whole, one of empty elements would take thirty
//! times its length.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message as _;

use crate::digest::Digest;
use crate::error::ReapiError;
use crate::messages::{self, DirectoryNode, FileNode, OutputDirectory, OutputFile};
use crate::wire::{Fields, Malformed};

/// A result may refer to so many blobs.
const BLOBS_MAX: usize = 250_000;

/// Blobs that have to be there, and messages among them that refer to more.
#[derive(Debug, Default)]
pub struct References {
    function: i32,
    blobs: BTreeSet<Digest>,
    trees: BTreeSet<Digest>,
    directories: BTreeSet<Digest>,
    /// Directories in trees.
    directories_seen: usize,
}

// Numbers of the fields (remote_execution.proto): of an action result, of a tree, of a directory.
const OUTPUT_FILES: u64 = 2;
const OUTPUT_DIRECTORIES: u64 = 3;
const STDOUT_RAW: u64 = 5;
const STDOUT_DIGEST: u64 = 6;
const STDERR_RAW: u64 = 7;
const STDERR_DIGEST: u64 = 8;
const ROOT: u64 = 1;
const CHILDREN: u64 = 2;
const FILES: u64 = 1;
const DIRECTORIES: u64 = 2;

fn malformed(what: &'static str) -> ReapiError {
    ReapiError::Malformed { what }
}

/// A message that refers to blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Referrer {
    /// A directory with all below it.
    Tree,
    /// A directory alone.
    Directory,
}

impl References {
    /// What a result refers to; `function` is the one of the request.
    ///
    /// # Errors
    /// [`ReapiError`].
    pub fn of_result(result: &[u8], function: i32) -> Result<Self, ReapiError> {
        let mut found = Self {
            function,
            ..Self::default()
        };
        let malformed = |()| malformed("action result");
        for field in Fields::of(result) {
            match field.map_err(|Malformed| malformed(()))? {
                (OUTPUT_FILES, Some(file)) => {
                    let file = OutputFile::decode(file).map_err(|_| malformed(()))?;
                    if file.digest.is_some() || file.contents.is_empty() {
                        found.add(file.digest.as_ref())?;
                    }
                }
                (OUTPUT_DIRECTORIES, Some(directory)) => {
                    let directory =
                        OutputDirectory::decode(directory).map_err(|_| malformed(()))?;
                    found.add_output_directory(&directory)?;
                }
                (STDOUT_DIGEST | STDERR_DIGEST, Some(digest)) => {
                    let digest = messages::Digest::decode(digest).map_err(|_| malformed(()))?;
                    found.add(Some(&digest))?;
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// The directory `root`, and what it refers to.
    #[must_use]
    pub fn of_root(root: Digest, function: i32) -> Self {
        Self {
            function,
            directories: BTreeSet::from([root]),
            ..Self::default()
        }
    }

    /// The next message among the blobs that refers to more, which the caller gives to
    /// [`References::extend`]. Each is returned once.
    pub fn next_referrer(&mut self) -> Option<(Referrer, Digest)> {
        let tree = self.trees.pop_first();
        let next = tree.map(|tree| (Referrer::Tree, tree)).or_else(|| {
            let directory = self.directories.pop_first()?;
            Some((Referrer::Directory, directory))
        });
        if let Some((_, digest)) = next {
            self.blobs.insert(digest);
        }
        next
    }

    /// Adds what a message refers to.
    ///
    /// # Errors
    /// [`ReapiError`].
    pub fn extend(&mut self, referrer: Referrer, message: &[u8]) -> Result<(), ReapiError> {
        match referrer {
            // The directories are in the tree; their files are not.
            Referrer::Tree => {
                for field in Fields::of(message) {
                    let field = field.map_err(|Malformed| malformed("tree"))?;
                    if let (ROOT | CHILDREN, Some(directory)) = field {
                        self.directories_seen += 1;
                        self.bounded()?;
                        self.extend_of_directory(directory, "tree", false)?;
                    }
                }
                Ok(())
            }
            Referrer::Directory => self.extend_of_directory(message, "directory", true),
        }
    }

    /// Adds the files of a directory, and the directories in it if they are messages of their own.
    fn extend_of_directory(
        &mut self,
        directory: &[u8],
        what: &'static str,
        has_directories: bool,
    ) -> Result<(), ReapiError> {
        for field in Fields::of(directory) {
            match field.map_err(|Malformed| malformed(what))? {
                (FILES, Some(file)) => {
                    let file = FileNode::decode(file).map_err(|_| malformed(what))?;
                    self.add(file.digest.as_ref())?;
                }
                (DIRECTORIES, Some(directory)) if has_directories => {
                    let directory =
                        DirectoryNode::decode(directory).map_err(|_| malformed(what))?;
                    self.refer(directory.digest.as_ref())?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add_output_directory(&mut self, directory: &OutputDirectory) -> Result<(), ReapiError> {
        let (tree, root) = (&directory.tree_digest, &directory.root_directory_digest);
        if let Some(tree) = tree {
            self.trees.insert(Digest::of(Some(tree), self.function)?);
        }
        if let Some(root) = root {
            self.refer(Some(root))?;
        }
        if tree.is_none() && root.is_none() {
            return Err(ReapiError::NoDigest);
        }
        self.bounded()
    }

    /// All blobs so far. They are all when no referrer is left.
    pub fn blobs(&self) -> impl Iterator<Item = &Digest> {
        self.blobs.iter()
    }

    fn add(&mut self, digest: Option<&messages::Digest>) -> Result<(), ReapiError> {
        self.blobs.insert(Digest::of(digest, self.function)?);
        self.bounded()
    }

    fn refer(&mut self, digest: Option<&messages::Digest>) -> Result<(), ReapiError> {
        let digest = Digest::of(digest, self.function)?;
        // One that was looked at is a blob by now; the empty directory refers to nothing.
        if digest.len() > 0 && !self.blobs.contains(&digest) {
            self.directories.insert(digest);
        }
        self.bounded()
    }

    fn bounded(&self) -> Result<(), ReapiError> {
        let known = self.blobs.len() + self.directories.len() + self.trees.len();
        match known.max(self.directories_seen) > BLOBS_MAX {
            true => Err(ReapiError::TooManyBlobs { max: BLOBS_MAX }),
            false => Ok(()),
        }
    }
}

/// The contents in a result that have a digest beside them: those of files, then the outputs. They
/// end where the result is malformed.
pub fn inlined(result: &[u8]) -> impl Iterator<Item = (messages::Digest, Bytes)> {
    let fields = || Fields::of(result).map_while(Result::ok);
    let mut outputs = [(None, None); 2];
    for (number, content) in fields() {
        // The last field of a number counts.
        match number {
            STDOUT_DIGEST => outputs[0].0 = content,
            STDOUT_RAW => outputs[0].1 = content,
            STDERR_DIGEST => outputs[1].0 = content,
            STDERR_RAW => outputs[1].1 = content,
            _ => {}
        }
    }
    let files = fields().filter_map(|field| {
        let (OUTPUT_FILES, Some(file)) = field else {
            return None;
        };
        let file = OutputFile::decode(file).ok()?;
        Some((file.digest?, file.contents))
    });
    let outputs = outputs.into_iter().filter_map(|(digest, contents)| {
        let digest = messages::Digest::decode(digest?).ok()?;
        Some((digest, Bytes::copy_from_slice(contents?)))
    });
    files.chain(outputs).filter(|(_, it)| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{ActionResult, Directory, Tree};

    #[test]
    fn messages_of_empty_elements_end_early_or_at_a_bound() {
        let of = |count: usize| [0x12, 0x00].repeat(count);
        let absent = ReapiError::NoDigest;
        let found = References::of_result(&of(1_000_000), 0).map(|_| ());
        assert_eq!(found, Err(absent));
        // An empty directory has no files.
        let mut references = References::default();
        assert_eq!(references.extend(Referrer::Tree, &of(200_000)), Ok(()));
        let more = references.extend(Referrer::Tree, &of(100_000));
        assert_eq!(more, Err(ReapiError::TooManyBlobs { max: BLOBS_MAX }));
    }

    fn digest(number: u8) -> messages::Digest {
        messages::Digest {
            hash: format!("{number:02x}").repeat(32),
            size_bytes: i64::from(number),
        }
    }

    fn file(number: u8) -> FileNode {
        FileNode {
            digest: Some(digest(number)),
        }
    }

    fn numbers(references: &References) -> Vec<u64> {
        references.blobs().map(Digest::len).collect()
    }

    #[test]
    fn a_result_refers_to_its_files_outputs_and_all_in_its_trees() {
        let result = ActionResult {
            output_files: vec![OutputFile {
                digest: Some(digest(1)),
                ..OutputFile::default()
            }],
            output_directories: vec![OutputDirectory {
                tree_digest: Some(digest(2)),
                ..OutputDirectory::default()
            }],
            stdout_digest: Some(digest(3)),
            stderr_digest: Some(digest(0)),
            ..ActionResult::default()
        };
        let mut found = References::of_result(&result.encode_to_vec(), 0).unwrap();
        let (referrer, tree) = found.next_referrer().unwrap();
        assert_eq!((referrer, tree.len()), (Referrer::Tree, 2));
        let tree = Tree {
            root: Some(Directory {
                files: vec![file(4)],
                directories: Vec::new(),
            }),
            children: vec![Directory {
                files: vec![file(5), file(1)],
                directories: Vec::new(),
            }],
        };
        found.extend(referrer, &tree.encode_to_vec()).unwrap();
        assert!(found.next_referrer().is_none());
        assert_eq!(numbers(&found), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn directories_are_walked_once_each_also_where_they_repeat() {
        let result = ActionResult {
            output_directories: vec![OutputDirectory {
                root_directory_digest: Some(digest(1)),
                ..OutputDirectory::default()
            }],
            ..ActionResult::default()
        };
        let mut found = References::of_result(&result.encode_to_vec(), 1).unwrap();
        let mut walked = Vec::new();
        while let Some((referrer, of)) = found.next_referrer() {
            assert_eq!(referrer, Referrer::Directory);
            walked.push(of.len());
            // Each has two others, one of them itself: no content can, but a broken store could.
            let next = |number| DirectoryNode {
                digest: Some(digest(number)),
            };
            let number = u8::try_from(of.len()).unwrap();
            let directory = Directory {
                files: vec![file(9)],
                directories: vec![next(number), next((number + 1).min(4))],
            };
            found.extend(referrer, &directory.encode_to_vec()).unwrap();
        }
        assert_eq!(walked, [1, 2, 3, 4]);
        assert_eq!(numbers(&found), [1, 2, 3, 4, 9]);
    }

    #[test]
    fn contents_in_the_result_need_no_blob_and_a_file_without_both_is_malformed() {
        let of = |file| {
            let result = ActionResult {
                output_files: vec![file],
                ..ActionResult::default()
            };
            References::of_result(&result.encode_to_vec(), 0)
        };
        let inside = OutputFile {
            contents: bytes::Bytes::from_static(b"text"),
            digest: None,
        };
        assert!(numbers(&of(inside).unwrap()).is_empty());
        assert!(of(OutputFile::default()).is_err());
    }

    #[test]
    fn contents_are_inlined_where_their_digest_is_beside_them() {
        let file = |number, contents: &'static [u8]| OutputFile {
            digest: (number > 0).then(|| digest(number)),
            contents: Bytes::from_static(contents),
        };
        let result = ActionResult {
            output_files: vec![file(1, b"one"), file(0, b"without"), file(2, b"")],
            stdout_raw: Bytes::from_static(b"out"),
            stdout_digest: Some(digest(3)),
            stderr_raw: Bytes::from_static(b"without"),
            ..ActionResult::default()
        };
        let encoded = result.encode_to_vec();
        let found: Vec<_> = inlined(&encoded).collect();
        let expected = [
            (digest(1), Bytes::from_static(b"one")),
            (digest(3), Bytes::from_static(b"out")),
        ];
        assert_eq!(found, expected);
        // Of a message that is cut off the whole fields are read, one at a time.
        let many = [0x12, 3, 0x2a, 1, b'x'].repeat(800_000);
        assert_eq!(inlined(&[&encoded[..], &many, &[0x12]].concat()).count(), 2);
        assert_eq!(inlined(b"\xcc\xac\x01\x00").count(), 0);
    }

    #[test]
    fn values_of_other_tools_are_no_results() {
        // ccache, and the JSON form that moon stores over HTTP.
        for value in [&b"\xcc\xac\x01\x00"[..], b"{\"exitCode\":0}"] {
            assert!(References::of_result(value, 0).is_err());
        }
        assert!(
            References::of_result(&[], 0)
                .unwrap()
                .blobs()
                .next()
                .is_none()
        );
    }
}
