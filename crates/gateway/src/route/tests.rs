use proptest::prelude::*;

use super::*;

const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn understood(method: &str, url: &str) -> (Dialect, Operation, String) {
    let (path, query) = match url.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (url, None),
    };
    let route = route(method, path, query).unwrap();
    let key = String::from_utf8(route.key).unwrap();
    (route.dialect, route.operation, key)
}

#[test]
fn the_key_is_the_path() {
    for (url, key) in [
        ("/team-a/2/1/a/21ae7b", "team-a/2/1/a/21ae7b"),
        ("/team-a/.sccache_check", "team-a/.sccache_check"),
        ("/a%20b%2Fc", "a b/c"),
        ("/x?y=z", "x"),
        ("/x?slug=%zz", "x"),
        ("/ac/short", "ac/short"),
        ("/v1/cache/a/b", "v1/cache/a/b"),
        ("/statuses", "statuses"),
    ] {
        let expected = (Dialect::Generic, Operation::Read, key.to_owned());
        assert_eq!(understood("GET", url), expected, "{url}");
    }
}

#[test]
fn each_dialect_is_known_by_its_path() {
    let hex = |kind: &str| format!("{kind}/{HASH}");
    for (url, dialect) in [
        (hex("/ac"), Dialect::BazelAc),
        (hex("/team/main/ac"), Dialect::BazelAc),
        (hex("/cas"), Dialect::BazelCas),
        (hex("/team/cas"), Dialect::BazelCas),
        (hex("/xac"), Dialect::Generic),
        (format!("/cas/{}", HASH.to_uppercase()), Dialect::Generic),
        ("/cache/0123".to_owned(), Dialect::Gradle),
        ("/v1/cache/17575332623054215528".to_owned(), Dialect::Nx),
        (
            format!("/mvn/v1.1/g.id/a-id/{HASH}/buildinfo.xml"),
            Dialect::Maven,
        ),
        (format!("/v1.1/g.id/a-id/{HASH}/a.jar"), Dialect::Maven),
        (
            "/v8/artifacts/0123456789abcdef".to_owned(),
            Dialect::Turborepo,
        ),
        (hex("/actions/cache"), Dialect::Actions),
        ("/actions/cache/some".to_owned(), Dialect::Generic),
    ] {
        let found = route("GET", &url, None).unwrap();
        assert_eq!(
            (found.dialect, found.operation),
            (dialect, Operation::Read),
            "{url}"
        );
        assert_eq!(found.key, url.as_bytes()[1..]);
        assert_eq!(
            found.digest.is_some(),
            matches!(dialect, Dialect::BazelCas | Dialect::Actions),
            "{url}"
        );
    }
}

#[test]
fn methods_become_operations() {
    for (method, url, operation) in [
        ("GET", "/a", Operation::Read),
        ("HEAD", "/a", Operation::Probe),
        ("PUT", "/a", Operation::Write),
        ("DELETE", "/a", Operation::Remove),
        ("PROPFIND", "/a/", Operation::Describe),
        ("PROPFIND", "/", Operation::Describe),
        ("MKCOL", "/a/b/", Operation::MakeCollection),
        ("POST", "/cache/a", Operation::Write),
        ("OPTIONS", "*", Operation::TellMethods),
        ("GET", "/status", Operation::TellStatus),
        ("GET", "/v8/artifacts/status", Operation::TellEnabled),
        ("POST", "/v8/artifacts/events", Operation::TakeEvents),
    ] {
        assert_eq!(
            route(method, url, None).unwrap().operation,
            operation,
            "{method} {url}"
        );
    }
    for (method, url) in [
        ("POST", "/a"),
        ("PUT", "/a/"),
        ("PUT", "/"),
        ("DELETE", "/"),
        ("PUT", "/status"),
        ("PATCH", "/v8/artifacts/1"),
        ("BREW", "/pot"),
    ] {
        assert_eq!(
            route(method, url, None),
            Err(RouteError::Method),
            "{method} {url}"
        );
    }
}

#[test]
fn the_team_of_turborepo_selects_the_key() {
    let key = |url: &str| understood("GET", url).2;
    assert_eq!(key("/v8/artifacts/1?slug=acme"), "v8/artifacts/acme/1");
    assert_eq!(
        key("/v8/artifacts/1?slug=acme&teamId=t1"),
        "v8/artifacts/t1/1"
    );
    assert_eq!(key("/v8/artifacts/1?slug="), "v8/artifacts/1");
    for query in ["slug=a%2Fb", "slug=..", "teamId=%zz"] {
        assert!(
            route("GET", "/v8/artifacts/1", Some(query)).is_err(),
            "{query}"
        );
    }
}

#[test]
fn no_team_of_turborepo_selects_a_key_of_bazel() {
    let path = format!("/v8/artifacts/{HASH}");
    for team in ["slug=cas", "slug=ac", "teamId=%63as"] {
        let refused = route("PUT", &path, Some(team));
        assert!(matches!(refused, Err(RouteError::Path(_))), "{team}");
    }
    // Hashes of Turborepo are no SHA-256.
    let key = understood("PUT", "/v8/artifacts/0123456789abcdef?slug=cas").2;
    assert_eq!(key, "v8/artifacts/cas/0123456789abcdef");
}

#[test]
fn a_url_of_the_server_may_end_in_a_slash() {
    for (doubled, plain) in [
        ("//team-a/x", "/team-a/x"),
        (
            "//v8/artifacts/0123456789abcdef",
            "/v8/artifacts/0123456789abcdef",
        ),
        ("///.sccache_check", "/.sccache_check"),
        ("//", "/"),
    ] {
        assert_eq!(
            route("GET", doubled, None),
            route("GET", plain, None),
            "{doubled}"
        );
    }
}

#[test]
fn paths_on_which_clients_could_disagree_are_refused() {
    for path in [
        "a",
        "/a//b",
        "/./a",
        "/a/..",
        "/a/%2Fb",
        "/%2e%2e/a",
        "/a%",
        "/a%4",
        "/a%g0",
        "/%+1",
    ] {
        assert!(
            matches!(route("GET", path, None), Err(RouteError::Path(_))),
            "{path}"
        );
    }
    let long = format!("/{}", "a".repeat(RESP_KEY_LEN_MAX + 1));
    assert_eq!(route("GET", &long, None), Err(RouteError::TooLong));
}

proptest! {
    #[test]
    fn every_key_comes_back_from_its_escapes(key in proptest::collection::vec(any::<u8>(), 1..100)) {
        let escaped: String = key.iter().map(|byte| format!("%{byte:02X}")).collect();
        let segments: Vec<&[u8]> = key.strip_suffix(b"/").unwrap_or(&key).split(|byte| *byte == b'/').collect();
        let is_plain = !segments.iter().any(|it| matches!(*it, b"" | b"." | b".."));
        match route("GET", &format!("/{escaped}"), None) {
            Ok(route) => prop_assert!(is_plain && (route.key == key || route.dialect == Dialect::Status)),
            Err(_) => prop_assert!(!is_plain),
        }
    }

    #[test]
    fn any_text_is_understood_or_refused(method in ".{0,8}", path in "/?.{0,60}", query in proptest::option::of(".{0,40}")) {
        if let Ok(route) = route(&method, &path, query.as_deref()) {
            prop_assert!(route.key.len() <= RESP_KEY_LEN_MAX);
            prop_assert_eq!(route.digest.is_some(), route.dialect == Dialect::BazelCas && method != "OPTIONS");
        }
    }
}
