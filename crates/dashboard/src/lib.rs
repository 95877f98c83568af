//! The web page of the admin port: its files, embedded, and the function that serves them.
//!
//! `web/` has the sources, `dist/` what `npm run build` makes of them, which is checked in so that
//! building Fonn needs no Node.js; `.ci/dashboard-checks` makes it anew and compares. The page
//! talks gRPC-web to the origin that served it, so node and router mount it unchanged. It loads
//! nothing from elsewhere, which its Content-Security-Policy also forbids.

/// The policy for the page. Scripts and styles come as files, never from within the markup, so text
/// from outside cannot become code.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

/// A file of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asset {
    /// Its media type.
    pub content_type: &'static str,
    /// Its bytes.
    pub bytes: &'static [u8],
    /// An entity tag with its quotes (RFC 9110, section 8.8.3) that changes with the bytes.
    pub etag: &'static str,
    /// The URL names these very bytes: they need not be asked for again.
    pub immutable: bool,
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
        include_bytes!("../dist/index.html"),
    ),
    row(
        "/app.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/app.js"),
    ),
    row(
        "/app.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/app.css"),
    ),
    row(
        "/favicon.svg",
        "image/svg+xml",
        include_bytes!("../dist/favicon.svg"),
    ),
];

/// The file at `path`, the path of a URL without its query; `/` is the page itself. A query `v=TAG`
/// with the entity tag (without quotes) names one version of the file; of another one the current
/// version is served all the same, for a page that was loaded before an upgrade.
#[must_use]
pub fn serve(path: &str, query: Option<&str>) -> Option<Asset> {
    let path = if path == "/" { "/index.html" } else { path };
    let row = FILES.iter().find(|row| row.path == path)?;
    let etag = std::str::from_utf8(&row.etag).ok()?;
    let version = query.and_then(|query| query.strip_prefix("v="));
    Some(Asset {
        content_type: row.content_type,
        bytes: row.bytes,
        etag,
        immutable: version == Some(etag.trim_matches('"')),
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
        std::str::from_utf8(serve(path, None).unwrap().bytes).unwrap()
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
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("dist");
        let on_disk: BTreeSet<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| format!("/{}", entry.unwrap().file_name().to_str().unwrap()))
            .collect();
        let in_table: BTreeSet<String> = FILES.iter().map(|row| row.path.to_owned()).collect();
        assert_eq!(in_table, on_disk);
    }

    #[test]
    fn the_root_is_the_page_and_other_paths_are_nothing() {
        assert_eq!(serve("/", None), serve("/index.html", None));
        let page = serve("/", None).unwrap();
        assert!(page.content_type.starts_with("text/html") && !page.immutable);
        for path in [
            "",
            "index.html",
            "/dist/index.html",
            "/../Cargo.toml",
            "//",
            "/app.js/",
        ] {
            assert_eq!(serve(path, None), None, "{path}");
        }
    }

    #[test]
    fn entity_tags_are_quoted_and_follow_the_bytes() {
        assert_eq!(&etag(b""), b"\"cbf29ce484222325\"");
        assert_eq!(&etag(b"a"), b"\"af63dc4c8601ec8c\"");
        let tags: BTreeSet<&str> = FILES
            .iter()
            .map(|row| serve(row.path, None).unwrap().etag)
            .collect();
        assert_eq!(tags.len(), FILES.len());
    }

    #[test]
    fn the_page_refers_to_the_versions_that_are_served() {
        let page = text("/");
        let references = [quoted_after(page, "src=\""), quoted_after(page, "href=\"")].concat();
        let files = references.iter().filter(|it| it.starts_with('/'));
        let mut seen = 0;
        for url in files {
            let (path, query) = url.split_once('?').unwrap();
            let asset = serve(path, Some(query)).unwrap();
            assert!(asset.immutable, "{url}: run `npm run build`");
            seen += 1;
        }
        assert_eq!(seen, FILES.len() - 1);
        let old = serve("/app.js", Some("v=0000000000000000")).unwrap();
        assert!(!old.immutable && old.bytes == text("/app.js").as_bytes());
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere_and_has_no_inline_code() {
        assert!(CONTENT_SECURITY_POLICY.starts_with("default-src 'self'"));
        assert!(!CONTENT_SECURITY_POLICY.contains("unsafe"));
        let page = text("/");
        assert!(
            !page.contains("<script>") && !page.contains("<style") && !page.contains(" style=")
        );
        for elsewhere in ["src=\"http", "href=\"http", "url(http", "@import"] {
            for path in ["/", "/app.css"] {
                assert!(!text(path).contains(elsewhere), "{path}: {elsewhere}");
            }
        }
    }
}
