//! `fonnctl user`.

use std::io::IsTerminal as _;
use std::path::Path;

use fonn_base::size::ByteCount;
use fonn_proto::grpc::v1::{
    self, ListUsersRequest, ListUsersResponse, PutUserRequest, RemoveUserRequest, UserSource,
};
use serde::Serialize;

use super::Verdict;
use super::args::{self, NONE, PutUser, RemoveUser};
use super::connection::Connection;
use super::error::CtlError;
use super::output::{Of, Output};
use super::password::{STDIN, Wanted, hash_password, read_password};
use super::table::{Table, printable};

/// The password of a user that is put, in the environment.
const VARIABLE: &str = "FONN_NEW_PASSWORD";

#[derive(Serialize)]
struct Hashed {
    hash: String,
}

/// Reads a password and shows its hash. No node is asked.
pub(super) async fn hash(output: &Output) -> Result<Verdict, CtlError> {
    let hash = hash_password(&read_password("Password: ").await?)?;
    output.show(&Hashed { hash }, |hashed| format!("{}\n", hashed.hash))?;
    Ok(Verdict::Good)
}

/// The password that a user gets, if it gets one. Asked for before the node is: people take their
/// time.
pub(super) async fn new_password(
    put: &PutUser,
    login: &args::Login,
) -> Result<Option<Vec<u8>>, CtlError> {
    if put.keep_password {
        return Ok(None);
    }
    let is_stdin = |file: Option<&Path>| file == Some(Path::new(STDIN));
    let file = put.new_password_file.as_deref();
    if is_stdin(file) && is_stdin(login.password_file.as_deref()) {
        return Err(CtlError::Input(
            "standard input has one password: --new-password-file and --password-file cannot both be -"
                .to_owned(),
        ));
    }
    let variable = std::env::var_os(VARIABLE);
    let is_typed = file.is_none() && variable.is_none() && std::io::stdin().is_terminal();
    let name = &put.name;
    let password = Wanted {
        file: (file, "--new-password-file"),
        variable: (VARIABLE, variable),
        prompt: &format!("New password of {}: ", printable(name)),
        whose: &format!("the user {} (or --keep-password)", printable(name)),
    }
    .read()
    .await?;
    if is_typed && read_password("Again: ").await? != password {
        return Err(CtlError::Input(
            "the two passwords differ; nothing was changed".to_owned(),
        ));
    }
    Ok(Some(password))
}

/// Shows the users: at a router those of all members once where they say the same, else those of
/// each.
pub(super) async fn list(node: &Connection, output: &Output) -> Result<Verdict, CtlError> {
    let Some(everybody) = node.everybody().await? else {
        let list = node.call(node.users().list(ListUsersRequest {})).await?;
        output.show(&list, render)?;
        return Ok(Verdict::Good);
    };
    let mut lists = Vec::new();
    for (name, member) in &everybody.members {
        let list = member
            .call(member.users().list(ListUsersRequest {}))
            .await?;
        lists.push(Of::new(Some(name), list));
    }
    match lists.first() {
        _ if !output.is_json() => output.show(&lists, |lists| together(lists))?,
        Some(first) if lists.iter().all(|it| it.answer == first.answer) => {
            output.show(&first.answer, render)?;
        }
        _ => {
            for list in &lists {
                output.show(list, |it| it.headed(render))?;
            }
        }
    }
    Ok(Verdict::Good)
}

/// The users by several members.
fn together(lists: &[Of<ListUsersResponse>]) -> String {
    // Where they differ, the member with the key takes the user for another one, or for none.
    let Some(first) = lists.first() else {
        return "every member is down\n".to_owned();
    };
    if lists.iter().all(|it| it.answer == first.answer) {
        let count = lists.len();
        return format!(
            "{}the same at {count} of {count} members that are up\n",
            render(&first.answer)
        );
    }
    let all: String = lists.iter().map(|it| it.headed(render)).collect();
    all + "members differ: give all of them, and the routers, the same --users-file; of a change that was just agreed on one \
           may not have heard yet\n"
}

fn render(list: &ListUsersResponse) -> String {
    let mut table = Table::new(&["USER", "ROLE", "NAMESPACE", "BASE", ">QUOTA", "FROM", ""]);
    for it in &list.users {
        let quota = it.quota_bytes.map(ByteCount::new);
        let ignored = match it.ignored.as_str() {
            "" => String::new(),
            why => format!("ignored: {why}"),
        };
        table.row([
            it.name.clone(),
            it.role().name(),
            it.namespace.clone(),
            it.base.clone(),
            quota.map_or_else(|| "-".to_owned(), |quota| quota.to_string()),
            match it.source() {
                UserSource::File => "users file".to_owned(),
                source => source.name(),
            },
            ignored,
        ]);
    }
    table.render()
}

/// Adds or changes a user.
pub(super) async fn put(
    node: &Connection,
    put: PutUser,
    password: Option<Vec<u8>>,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let request = request(put, password);
    let change = node.call(node.users().put(request)).await?;
    output.show(&change, |it| format!("{}\n", printable(&it.message)))?;
    Ok(Verdict::Good)
}

fn request(put: PutUser, password: Option<Vec<u8>>) -> PutUserRequest {
    let role = match put.role {
        None => v1::Role::Unspecified,
        Some(args::Role::Read) => v1::Role::Read,
        Some(args::Role::ReadWrite) => v1::Role::ReadWrite,
        Some(args::Role::Admin) => v1::Role::Admin,
    };
    PutUserRequest {
        name: put.name,
        password,
        role: role.into(),
        namespace: put.namespace.unwrap_or_default(),
        base: put.base.map(|base| match base.as_str() {
            NONE => String::new(),
            _ => base,
        }),
        quota_bytes: put.quota.map(ByteCount::bytes),
    }
}

/// Removes a user.
pub(super) async fn remove(
    node: &Connection,
    args: RemoveUser,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let request = RemoveUserRequest { name: args.name };
    let change = node.call(node.users().remove(request)).await?;
    output.show(&change, |it| format!("{}\n", printable(&it.message)))?;
    Ok(Verdict::Good)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use fonn_proto::grpc::v1::User;

    use super::super::args::{Cli, Command};
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<(PutUser, args::Login), String> {
        let arguments = [&["fonnctl", "user", "put"], arguments].concat();
        let cli = Cli::try_parse_from(arguments).map_err(|error| error.to_string())?;
        match cli.command {
            Command::User(args::User::Put(put)) => Ok((put, cli.login)),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn what_is_left_out_is_not_said_and_none_is() {
        let request_of = |arguments: &[&str]| request(parsed(arguments).unwrap().0, None);
        assert_eq!(
            request_of(&["ci"]),
            PutUserRequest {
                name: "ci".to_owned(),
                ..PutUserRequest::default()
            }
        );
        let full = request_of(&[
            "ci",
            "--role",
            "read-write",
            "--namespace",
            "pull",
            "--base",
            "main",
            "--quota",
            "2g",
        ]);
        assert_eq!(full.role(), v1::Role::ReadWrite);
        assert_eq!(
            (
                full.namespace.as_str(),
                full.base.as_deref(),
                full.quota_bytes
            ),
            ("pull", Some("main"), Some(2 << 30))
        );
        let none = request_of(&["ci", "--base", "none", "--quota", "none"]);
        assert_eq!(
            (none.base.as_deref(), none.quota_bytes),
            (Some(""), Some(0))
        );
        for wrong in [&["ci", "--role", "owner"][..], &["ci", "--quota", "0"], &[]] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn a_password_is_kept_or_comes_from_one_place() {
        let (put, login) = parsed(&["ci", "--keep-password"]).unwrap();
        assert_eq!(new_password(&put, &login).await.unwrap(), None);
        // The file may be in the environment, for others.
        let (put, login) = parsed(&["ci", "--keep-password", "--new-password-file", "x"]).unwrap();
        assert_eq!(new_password(&put, &login).await.unwrap(), None);
        let both = ["ci", "--new-password-file", "-", "--password-file", "-"];
        let (put, login) = parsed(&both).unwrap();
        let error = new_password(&put, &login).await.unwrap_err().to_string();
        assert!(error.contains("standard input has one password"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hunter 2\n").unwrap();
        let path = file.path().to_str().unwrap();
        let (put, login) = parsed(&["ci", "--new-password-file", path]).unwrap();
        assert_eq!(
            new_password(&put, &login).await.unwrap().unwrap(),
            b"hunter 2"
        );
    }

    #[test]
    fn what_all_members_say_is_told_once_and_what_they_do_not_for_each() {
        let of = |member: &str, users: &[&str]| {
            let user = |name: &&str| User {
                name: (*name).to_owned(),
                ..User::default()
            };
            let users = users.iter().map(user).collect();
            Of::new(Some(member), ListUsersResponse { users })
        };
        let same = together(&[of("a", &["ci"]), of("b", &["ci"])]);
        assert_eq!(same.matches("\nci ").count(), 1, "{same}");
        assert!(
            same.ends_with("the same at 2 of 2 members that are up\n"),
            "{same}"
        );
        let differ = together(&[of("a", &["ci"]), of("b", &["ci", "new"])]);
        assert!(differ.starts_with("member a\nUSER"), "{differ}");
        assert_eq!(differ.matches("\nci ").count(), 2, "{differ}");
        assert!(differ.contains("members differ"), "{differ}");
    }

    #[test]
    fn users_are_told_with_where_they_are_from() {
        let user = |name: &str, role: v1::Role, source: UserSource| User {
            name: name.to_owned(),
            role: role.into(),
            namespace: "main".to_owned(),
            source: source.into(),
            ..User::default()
        };
        let list = ListUsersResponse {
            users: vec![
                user("root", v1::Role::Admin, UserSource::File),
                User {
                    ignored: "the users file has a user of that name".to_owned(),
                    ..user("root", v1::Role::Read, UserSource::Cluster)
                },
                User {
                    namespace: "pull".to_owned(),
                    base: "main".to_owned(),
                    quota_bytes: Some(20 << 30),
                    ..user("pr", v1::Role::ReadWrite, UserSource::Cluster)
                },
            ],
        };
        assert_eq!(
            render(&list),
            "\
USER  ROLE        NAMESPACE  BASE  QUOTA  FROM
root  admin       main                 -  users file
root  read        main                 -  cluster     ignored: the users file has a user of that name
pr    read-write  pull       main    20g  cluster
"
        );
        let json = serde_json::to_value(&list).unwrap();
        assert_eq!(json["users"][2]["role"], "read-write");
        assert_eq!(json["users"][2]["source"], "cluster");
    }
}
