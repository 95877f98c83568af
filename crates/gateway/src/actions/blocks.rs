//! What a client says of the blocks that it uploads: the part of Azure's `Put Block`, `Put Block
//! List` and `Put Blob` (REST API of Blob Storage) that `@azure/storage-blob` uses.

use crate::route::unescape;

/// Blocks of an archive at most.
pub(crate) const BLOCKS_MAX: usize = 10_000;

/// Longest name of a block in characters of Base64. Azure allows 64 bytes.
const NAME_LEN_MAX: usize = 88;

/// What the body of an upload is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Component {
    /// The whole archive.
    Archive,
    /// The block of this name.
    Block(String),
    /// The list of the blocks that make the archive.
    BlockList,
}

/// What the query of an upload says. `None` if it is none of these.
pub(crate) fn component(query: &str) -> Option<Component> {
    match parameter(query, "comp").as_deref() {
        None => Some(Component::Archive),
        Some("block") => {
            let name = parameter(query, "blockid")?;
            is_name(&name).then_some(Component::Block(name))
        }
        Some("blocklist") => Some(Component::BlockList),
        Some(_) => None,
    }
}

/// The value of a parameter of a query.
pub(crate) fn parameter(query: &str, name: &str) -> Option<String> {
    let mut values = query
        .split('&')
        .filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    String::from_utf8(unescape(values.next()?.as_bytes()).ok()?).ok()
}

fn is_name(text: &str) -> bool {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    !text.is_empty() && text.len() <= NAME_LEN_MAX && text.bytes().all(is_base64)
}

/// The names in a list of blocks, in their order. `None` if the document is malformed or too long.
pub(crate) fn block_list(document: &[u8]) -> Option<Vec<&str>> {
    let mut rest = std::str::from_utf8(document).ok()?.trim();
    if let Some(prolog) = rest.strip_prefix("<?xml") {
        rest = prolog.split_once("?>")?.1.trim_start();
    }
    if rest == "<BlockList/>" {
        return Some(Vec::new());
    }
    rest = rest
        .strip_prefix("<BlockList>")?
        .strip_suffix("</BlockList>")?;
    let mut names = Vec::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Some(names);
        }
        let (tag, behind) = rest.strip_prefix('<')?.split_once('>')?;
        if !matches!(tag, "Latest" | "Committed" | "Uncommitted") {
            return None;
        }
        let (name, behind) = behind.split_once("</")?;
        rest = behind.strip_prefix(tag)?.strip_prefix('>')?;
        if !is_name(name) || names.len() == BLOCKS_MAX {
            return None;
        }
        names.push(name);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn queries_say_what_is_uploaded() {
        assert_eq!(component("sig=a"), Some(Component::Archive));
        assert_eq!(
            component("sig=a&comp=blocklist"),
            Some(Component::BlockList)
        );
        let block = component("comp=block&blockid=YWI%3D");
        assert_eq!(block, Some(Component::Block("YWI=".to_owned())));
        for query in ["comp=block", "comp=block&blockid=a%20b", "comp=page"] {
            assert_eq!(component(query), None, "{query}");
        }
    }

    #[test]
    fn a_list_has_its_names_in_order() {
        let list =
            b"<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<BlockList>\n <Latest>YQ==</Latest>\
            <Uncommitted>Yg==</Uncommitted></BlockList>";
        assert_eq!(block_list(list), Some(vec!["YQ==", "Yg=="]));
        assert_eq!(block_list(b"<BlockList/>"), Some(Vec::new()));
        for malformed in [
            &b""[..],
            b"<BlockList>",
            b"<BlockList><Latest>YQ==</Committed></BlockList>",
            b"<BlockList><Other>YQ==</Other></BlockList>",
            b"<BlockList><Latest>&lt;</Latest></BlockList>",
            b"<BlockList><Latest></Latest></BlockList>",
        ] {
            assert_eq!(block_list(malformed), None);
        }
        let many = "<Latest>YQ==</Latest>".repeat(BLOCKS_MAX + 1);
        assert_eq!(
            block_list(format!("<BlockList>{many}</BlockList>").as_bytes()),
            None
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_none(text in "(<|>|/|BlockList|Latest|[a-z= ]){0,20}") {
            let _ = block_list(text.as_bytes());
            let _ = component(&text);
        }

        #[test]
        fn names_come_back(names in prop::collection::vec("[A-Za-z0-9+/=]{1,88}", 0..9)) {
            let rows: String = names.iter().map(|it| format!("<Latest>{it}</Latest>")).collect();
            let list = format!("<BlockList>{rows}</BlockList>");
            prop_assert_eq!(block_list(list.as_bytes()).unwrap(), names);
        }
    }
}
