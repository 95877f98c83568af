//! Namespaces with placeholders, and the overlays that their rules give.

use fonn_proto::Overlay;

use super::*;
use crate::testing::row;

const PATTERN: &str =
    "name = 'acme-pr-{repository_id}-{ref}'\nbase = 'acme'\nttl = '7d'\nquota = '20g'\n";

/// The file with an overlay for each pull request.
fn file() -> String {
    let file = FILE.replace("name = 'acme-pr'\nbase = 'acme'\n", PATTERN);
    file.replace(
        "namespace = 'acme-pr'",
        "namespace = 'acme-pr-{repository_id}-{ref}'",
    )
}

fn pull(number: &str) -> [(&'static str, String); 2] {
    let reference = format!("refs/pull/{number}/merge");
    [("repository_id", "123".to_owned()), ("ref", reference)]
}

fn overlay(directory: &Directory, claims: &[(&str, String)]) -> Option<Overlay> {
    let claims: Vec<_> = claims.iter().map(|(name, text)| (*name, &**text)).collect();
    let token = exchange(directory, &claims).unwrap();
    let identity = verify(directory, &token).unwrap();
    assert_eq!(identity.overlay, token.identity.overlay);
    identity.overlay
}

#[test]
fn each_value_of_a_placeholder_has_an_overlay_of_its_own() {
    let [one, other] = [KEY, KEY].map(|key| Files::new(key).load(&file()).unwrap());
    let seven = overlay(&one, &pull("7"));
    assert!(seven.is_some());
    assert_eq!(overlay(&other, &pull("7")), seven);
    assert_ne!(overlay(&one, &pull("8")), seven);
    let main = exchange(&one, &MAIN).unwrap();
    assert_eq!(verify(&one, &main).unwrap().overlay, None);

    let claims = pull("7");
    let claims = claims.each_ref().map(|(name, text)| (*name, text.as_str()));
    let token = exchange(&one, &claims).unwrap();
    let namespace = &token.identity.namespace;
    assert_eq!(&*namespace.name, "acme-pr-{repository_id}-{ref}");
    assert_eq!(namespace.base, Some(namespace_number("acme")));
    assert_eq!(namespace.ttl, Some(Duration::from_secs(7 * 86_400)));
    // A token ends with what its rule says of entries.
    for changed in [
        file().replace("'7d'", "'8d'"),
        file().replace("-{ref}", "-{sub}"),
        FILE.to_owned(),
    ] {
        let directory = Files::new(KEY).load(&changed).unwrap();
        assert!(verify(&directory, &token).is_none(), "{changed}");
        assert!(!directory.holds(&token.identity, NOW_MS), "{changed}");
    }
}

#[test]
fn an_identity_without_the_claim_gets_no_token() {
    let text = file().replace("-{ref}", "-{head_ref}");
    let directory = Files::new(KEY).load(&text).unwrap();
    for head in [&[][..], &[("head_ref", "")]] {
        let claims = [
            &[("repository_id", "123"), ("ref", "refs/pull/7/merge")],
            head,
        ]
        .concat();
        let error = exchange(&directory, &claims).unwrap_err();
        assert_eq!(error, ExchangeError::Claim("head_ref".into()));
        assert_eq!(
            error.to_string(),
            "the claim `head_ref` has no value or several, and the namespace of the rule has a placeholder for it: name \
             another claim in the users file"
        );
    }
}

#[test]
fn what_is_wrong_with_a_placeholder_is_named() {
    let files = Files::new(KEY);
    let name = "acme-pr-{repository_id}-{ref}";
    let refused = |from: &str, to: &str, expected: &str| {
        let file = file();
        assert!(file.contains(from), "{from}");
        let error = files.load(&file.replace(from, to)).expect_err(expected);
        assert!(error.ends_with(expected), "{error}");
    };
    refused(
        "base = 'acme'\n",
        "",
        &format!(
            "line 9: the namespace `{name}` has a placeholder and no `base`: name the namespace that its overlays read"
        ),
    );
    refused(
        "ttl = '7d'\n",
        "",
        &format!(
            "line 9: the namespace `{name}` has a placeholder and no `ttl`: say how long an entry of its overlays lives at \
             most, like \"7d\""
        ),
    );
    refused(
        "ttl = '7d'",
        "ttl = '7ms'",
        "line 11: `ttl`: expected 1s or more, like 7d",
    );
    refused(
        "name = 'acme-pr-{repository_id}-{ref}'",
        "name = 'acme-pr-{repository_id}-{ref'",
        "line 9: the namespace `acme-pr-{repository_id}-{ref` is not accepted: expected a placeholder with the name of a claim, \
         like `{ref}`",
    );
    refused(
        "namespace = 'acme-pr-{repository_id}-{ref}'",
        "namespace = 'acme-pr-{sub}'",
        "the namespace `acme-pr-{sub}` has a placeholder: declare it in a [[namespace]] table with its `base` and `ttl`",
    );
    refused(
        "base = 'acme'",
        &format!("base = '{name}'"),
        &format!("the namespace `{name}` has itself as its `base`"),
    );
    // What a user stored there would be in no overlay, and its keys could be those of any.
    let alone = format!(
        "the namespace `{name}` has a placeholder: identities of OIDC issuers alone can be in it, by a rule"
    );
    let user = row("u", "read", &format!("namespace = '{name}'\nbase = 'acme'"));
    let token = format!(
        "[[token]]\nname = 't'\nrole = 'read'\nnamespace = '{name}'\nhash = 'sha256:{}'\n",
        "0".repeat(64)
    );
    for more in [user, token] {
        let error = files.load(&(file() + &more)).unwrap_err();
        assert!(error.ends_with(&alone), "{error}");
    }
    // A plain namespace may bound the time too.
    let plain = FILE.replace("base = 'acme'", "base = 'acme'\nttl = '1d'");
    let directory = files.load(&plain).unwrap();
    let namespace = directory.namespace("acme-pr").unwrap();
    assert_eq!(namespace.ttl, Some(Duration::from_secs(86_400)));
}
