//! The web page of the admin port: its files, embedded, and the function that serves them.
//!
//! The page needs nothing but `/metrics` of the same origin, so node and router mount it unchanged.
//! It loads nothing from elsewhere, which its Content-Security-Policy also forbids. Every file in
//! `web/` has a row in the table; a test compares the two.

/// A file of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asset {
    /// Its media type.
    pub content_type: &'static str,
    /// Its bytes.
    pub bytes: &'static [u8],
    /// An entity tag with its quotes (RFC 9110, section 8.8.3) that changes with the bytes.
    pub etag: &'static str,
}

struct Row {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
    etag: [u8; ETAG_LEN],
}

/// Two quotes and 64 bits in hexadecimal.
const ETAG_LEN: usize = 18;

const fn row(path: &'static str, content_type: &'static str, bytes: &'static [u8]) -> Row {
    Row {
        path,
        content_type,
        bytes,
        etag: etag(bytes),
    }
}

static FILES: [Row; 4] = [
    row(
        "/index.html",
        "text/html; charset=utf-8",
        include_bytes!("../web/index.html"),
    ),
    row(
        "/app.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../web/app.js"),
    ),
    row(
        "/style.css",
        "text/css; charset=utf-8",
        include_bytes!("../web/style.css"),
    ),
    row(
        "/favicon.svg",
        "image/svg+xml",
        include_bytes!("../web/favicon.svg"),
    ),
];

/// The file at `path`, the path of a URL without its query; `/` is the page itself.
#[must_use]
pub fn serve(path: &str) -> Option<Asset> {
    let path = if path == "/" { "/index.html" } else { path };
    let row = FILES.iter().find(|row| row.path == path)?;
    let etag = std::str::from_utf8(&row.etag).ok()?;
    Some(Asset {
        content_type: row.content_type,
        bytes: row.bytes,
        etag,
    })
}

/// The 64-bit FNV-1a hash (draft-eastlake-fnv) of the bytes as an entity tag, at compile time.
const fn etag(bytes: &[u8]) -> [u8; ETAG_LEN] {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        index += 1;
    }
    let digits = b"0123456789abcdef";
    let mut tag = [b'"'; ETAG_LEN];
    let mut digit = 0;
    while digit < 16 {
        tag[1 + digit] = digits[((hash >> (60 - 4 * digit)) & 15) as usize];
        digit += 1;
    }
    tag
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn text(path: &str) -> &'static str {
        std::str::from_utf8(serve(path).unwrap().bytes).unwrap()
    }

    /// What stands between `before` and the next `"`, wherever it occurs.
    fn quoted_after<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
        text.split(before)
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap())
            .collect()
    }

    #[test]
    fn every_file_of_the_page_is_in_the_table() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("web");
        let on_disk: BTreeSet<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| format!("/{}", entry.unwrap().file_name().to_str().unwrap()))
            .collect();
        let in_table: BTreeSet<String> = FILES.iter().map(|row| row.path.to_owned()).collect();
        assert_eq!(in_table, on_disk);
    }

    #[test]
    fn the_root_is_the_page_and_other_paths_are_nothing() {
        assert_eq!(serve("/"), serve("/index.html"));
        assert!(serve("/").unwrap().content_type.starts_with("text/html"));
        for path in [
            "",
            "index.html",
            "/web/index.html",
            "/../Cargo.toml",
            "//",
            "/app.js/",
        ] {
            assert_eq!(serve(path), None, "{path}");
        }
    }

    #[test]
    fn entity_tags_are_quoted_and_follow_the_bytes() {
        assert_eq!(&etag(b""), b"\"cbf29ce484222325\"");
        assert_eq!(&etag(b"a"), b"\"af63dc4c8601ec8c\"");
        let tags: BTreeSet<&str> = FILES
            .iter()
            .map(|row| serve(row.path).unwrap().etag)
            .collect();
        assert_eq!(tags.len(), FILES.len());
    }

    #[test]
    fn everything_that_the_page_refers_to_is_served() {
        let page = text("/");
        let references = [quoted_after(page, "src=\""), quoted_after(page, "href=\"")].concat();
        assert!(references.len() >= 3, "{references:?}");
        for path in references {
            assert!(serve(path).is_some(), "{path}");
        }
    }

    #[test]
    fn every_element_that_the_script_fills_exists() {
        let ids: BTreeSet<&str> = quoted_after(text("/"), "id=\"").into_iter().collect();
        let used = quoted_after(text("/app.js"), "byId(\"");
        assert!(used.len() >= 3, "{used:?}");
        for id in used {
            assert!(ids.contains(id), "{id}");
        }
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere_and_has_no_inline_code() {
        let page = text("/");
        assert!(page.contains("default-src 'none'"), "the policy is gone");
        assert!(
            !page.contains("<script>") && !page.contains("<style") && !page.contains(" style=")
        );
        for row in &FILES {
            let text = text(row.path).replace("http://www.w3.org/2000/svg", "");
            assert!(
                !text.contains("http:") && !text.contains("https:"),
                "{}",
                row.path
            );
        }
        // Values come from a text that others can influence, so they never become markup.
        assert!(!text("/app.js").contains("innerHTML"));
    }
}
