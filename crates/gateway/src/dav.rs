//! The answer to PROPFIND (RFC 4918, section 9.1), as far as clients of a cache need it.
//!
//! Collections are not stored: every path that ends in a slash is one. A client asks for the
//! collection before it stores, and would create it otherwise.

use std::fmt::Write as _;

/// Entries have no time of change, and clients insist on one.
const CHANGED: &str = "Thu, 01 Jan 1970 00:00:00 GMT";

/// A resource that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// A path that ends in a slash.
    Collection,
    /// An entry with a value of so many bytes.
    Entry {
        /// The length of its value.
        len: usize,
    },
}

/// The body of a 207 for the resource at `path`, which is as the client sent it.
pub(crate) fn multistatus(path: &str, resource: Resource) -> String {
    let mut href = String::with_capacity(path.len());
    for char in path.chars() {
        match char {
            '&' => href.push_str("&amp;"),
            '<' => href.push_str("&lt;"),
            '>' => href.push_str("&gt;"),
            char => href.push(char),
        }
    }
    let mut properties = format!("<D:getlastmodified>{CHANGED}</D:getlastmodified>");
    match resource {
        Resource::Collection => {
            properties.push_str("<D:resourcetype><D:collection/></D:resourcetype>");
        }
        Resource::Entry { len } => {
            // Writing to a string does not fail.
            let _ = write!(
                properties,
                "<D:resourcetype/><D:getcontentlength>{len}</D:getcontentlength>"
            );
        }
    }
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>{href}</D:href>\
         <D:propstat><D:prop>{properties}</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>\
         </D:multistatus>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_and_an_entry_are_described() {
        let collection = multistatus("/a/", Resource::Collection);
        assert!(
            collection.contains("<D:href>/a/</D:href>") && collection.contains("<D:collection/>")
        );
        assert!(collection.contains("<D:getlastmodified>Thu, 01 Jan 1970"));
        let entry = multistatus("/a&<b>", Resource::Entry { len: 7 });
        assert!(
            entry.contains("<D:href>/a&amp;&lt;b&gt;</D:href>") && entry.contains("h>7</D:get")
        );
        assert!(!entry.contains("collection"));
    }
}
