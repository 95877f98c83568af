use super::*;
use crate::testing::{HASH, parsed, row};

/// `root` of `default`, `ci` of `main` and `pr` of `pull` over `main`.
fn file() -> Directory {
    parsed(
        &[
            row("root", "admin", ""),
            row("ci", "read-write", "namespace = 'main'\nquota = '1g'"),
            row("pr", "read-write", "namespace = 'pull'\nbase = 'main'"),
        ]
        .concat(),
    )
}

fn user(role: Role, namespace: &str) -> UserRecord {
    UserRecord {
        hash: HASH.to_owned(),
        role,
        namespace: namespace.to_owned(),
    }
}

fn over(base: &str) -> NamespaceRecord {
    NamespaceRecord {
        base: Some(base.to_owned()),
        quota: None,
    }
}

fn records(users: &[(&str, UserRecord)], namespaces: &[(&str, NamespaceRecord)]) -> Records {
    Records {
        revision: 1,
        users: users
            .iter()
            .map(|(name, it)| ((*name).to_owned(), it.clone()))
            .collect(),
        namespaces: namespaces
            .iter()
            .map(|(name, it)| ((*name).to_owned(), it.clone()))
            .collect(),
    }
}

fn names(directory: &Directory) -> Vec<String> {
    let all = directory.identities().into_iter();
    all.map(|it| it.user.to_string()).collect()
}

#[test]
fn users_of_both_are_there_and_the_file_wins() {
    let file = file();
    let said = NamespaceRecord {
        base: Some("other".to_owned()),
        quota: Some(ByteCount::new(7)),
    };
    let records = records(
        &[
            ("ci", user(Role::Admin, "other")),
            ("dev", user(Role::Read, "main")),
            ("new", user(Role::Read, "new")),
        ],
        &[
            ("main", said),
            ("new", over("main")),
            ("nobody", over("main")),
        ],
    );
    let (both, left_out) = union(&file, &records);
    assert_eq!(left_out, LeftOut::new());
    assert_eq!(names(&both), ["ci", "dev", "new", "pr", "root"]);
    let ci = &both.user("ci").unwrap().identity;
    assert_eq!((ci.role, &*ci.namespace.name), (Role::ReadWrite, "main"));
    assert!(
        both.holds(&file.user("ci").unwrap().identity, 0),
        "not changed"
    );
    // What the file says of `main` holds for its users.
    let main = both.namespace("main").unwrap();
    assert_eq!(
        (main.base, main.quota),
        (None, Some(ByteCount::new(1 << 30)))
    );
    let new = &both.user("new").unwrap().identity.namespace;
    assert_eq!(new.base, Some(namespace_number("main")));
    assert!(both.namespace("nobody").is_none(), "nobody is in it");
}

#[test]
fn a_quota_that_the_file_does_not_say_is_what_members_agreed_on() {
    let said = NamespaceRecord {
        base: None,
        quota: Some(ByteCount::new(7)),
    };
    let records = records(
        &[("dev", user(Role::Read, "default"))],
        &[("default", said)],
    );
    let (both, _) = union(&file(), &records);
    let default = both.namespace("default").unwrap();
    assert_eq!(default.quota, Some(ByteCount::new(7)));
    // Its users keep the connection when it changes.
    let (before, _) = union(
        &file(),
        &Records {
            namespaces: BTreeMap::new(),
            ..records
        },
    );
    for name in ["root", "dev"] {
        let identity = &before.user(name).unwrap().identity;
        assert!(both.holds(identity, 0), "{name}");
    }
}

#[test]
fn an_invalid_user_is_left_out_and_no_other() {
    let bad = |change: fn(&mut UserRecord)| {
        let mut record = user(Role::Read, "main");
        change(&mut record);
        record
    };
    // One name of 2^28 has the number of another one.
    let twin = "n242150602";
    assert_eq!(namespace_number(twin), namespace_number("main"));
    let records = records(
        &[
            ("a b", user(Role::Read, "main")),
            ("colon:", user(Role::Read, "main")),
            ("hash", bad(|it| it.hash = "secret".to_owned())),
            ("namespace", bad(|it| it.namespace = "a b".to_owned())),
            ("twin", user(Role::Read, twin)),
            ("itself", user(Role::Read, "itself")),
            ("lost", user(Role::Read, "lost")),
            ("third", user(Role::Read, "third")),
            ("good", user(Role::Read, "good")),
        ],
        &[
            ("itself", over("itself")),
            ("lost", over("absent")),
            ("third", over("pull")),
            ("good", over("main")),
        ],
    );
    let (both, left_out) = union(&file(), &records);
    assert_eq!(names(&both), ["ci", "good", "pr", "root"]);
    let why = |name: &str| left_out.get(name).map_or("", String::as_str);
    for (name, part) in [
        ("a b", "without a space"),
        ("colon:", "colon"),
        ("hash", "no password hash"),
        ("namespace", "the namespace `a b`"),
        ("twin", "have the same number"),
        ("itself", "has itself"),
        ("lost", "no user is in namespace `absent`"),
        ("third", "overlays have one level"),
    ] {
        assert!(why(name).contains(part), "{name}: {}", why(name));
        assert!(!why(name).contains("secret"), "{name}");
    }
    assert_eq!(left_out.len(), 8);
}

#[test]
fn what_would_leave_a_user_out_is_refused() {
    let file = file();
    let main = ("m", user(Role::Read, "m"));
    let overlay = ("o", user(Role::Read, "o"));
    let now = records(&[main.clone(), overlay.clone()], &[("o", over("m"))]);
    assert_eq!(judge(&file, &Records::default(), &now), Ok(()));
    let then = records(&[overlay], &[("o", over("m"))]);
    let why = judge(&file, &now, &then).unwrap_err();
    assert!(why.contains("`o` would not be let in any more"), "{why}");
    let then = records(&[main, ("a:b", user(Role::Read, "m"))], &[]);
    let why = judge(&file, &Records::default(), &then).unwrap_err();
    assert!(why.starts_with("the name `a:b`"), "{why}");
    // A user that was left out before hinders no change.
    let odd = records(&[("a:b", user(Role::Read, "m"))], &[]);
    let more = [
        ("a:b", user(Role::Read, "m")),
        ("c", user(Role::Read, "main")),
    ];
    assert_eq!(judge(&file, &odd, &records(&more, &[])), Ok(()));
}

#[test]
fn the_last_admin_stays() {
    let file = parsed(&row("ci", "read-write", ""));
    let two = records(
        &[
            ("a", user(Role::Admin, "default")),
            ("b", user(Role::Admin, "default")),
        ],
        &[],
    );
    let one = records(&[("a", user(Role::Admin, "default"))], &[]);
    assert_eq!(judge(&file, &two, &one), Ok(()));
    for then in [
        Records::default(),
        records(&[("a", user(Role::ReadWrite, "default"))], &[]),
    ] {
        let why = judge(&file, &one, &then).unwrap_err();
        assert!(why.starts_with("no admin would be left"), "{why}");
    }
    // That of a file stays anyway.
    let file = parsed(&row("root", "admin", ""));
    assert_eq!(judge(&file, &one, &Records::default()), Ok(()));
}

/// What they stored would be in no overlay, or in that of any.
#[test]
fn no_user_is_let_into_a_namespace_with_placeholders() {
    let records = records(&[("ci2", user(Role::ReadWrite, "pr-{ref}"))], &[]);
    let (directory, left_out) = union(&file(), &records);
    assert!(directory.user("ci2").is_none());
    assert_eq!(
        left_out["ci2"],
        "the namespace `pr-{ref}` has a placeholder: identities of OIDC issuers alone can be in it, by a rule"
    );
    let why = judge(&file(), &Records::default(), &records).unwrap_err();
    assert_eq!(why, left_out["ci2"]);
}
