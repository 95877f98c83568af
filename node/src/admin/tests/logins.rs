//! Rights on the admin port: every method of the descriptors with every role, and namespaces.

use std::collections::BTreeSet;

use fonn_admin::WATCHES;
use fonn_auth::{Directory, ROLES, Role, namespace_number};
use fonn_proto::grpc::DESCRIPTORS;
use fonn_proto::grpc::v1::{DeleteKeyRequest, FlushRequest, KeyRequest};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::{Code, Status};

use super::*;

/// argon2 of `secret`, with parameters that cost next to nothing.
const HASH: &str = "$argon2id$v=19$m=64,t=1,p=1$wXQK5rSIdVCHKOR1yYGIrg$tHaqh3b7PSsDIS4ZvXCTzKqUrmYfBtapcZhRS9E2V0w";

const USERS: [(&str, Role, &str); 4] = [
    ("dev", Role::Read, "namespace = 'main'"),
    ("ci", Role::ReadWrite, "namespace = 'main'"),
    ("pr", Role::ReadWrite, "namespace = 'pull'\nbase = 'main'"),
    ("root", Role::Admin, ""),
];

/// Served on `--cluster-listen` alone, where members know each other by their certificates.
const OF_MEMBERS: &str = "fonn.v1.Members/";

/// `package.Service/Method`, of all services.
fn methods() -> BTreeSet<String> {
    let set = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let mut methods = BTreeSet::new();
    for file in &set.file {
        for service in &file.service {
            for method in &service.method {
                let (service, method) = (service.name(), method.name());
                methods.insert(format!("{}.{service}/{method}", file.package()));
            }
        }
    }
    methods
}

pub(super) async fn guarded() -> Rig {
    let file = tempfile::NamedTempFile::new().unwrap();
    let rows = USERS.map(|(name, role, more)| {
        format!("[[user]]\nname = '{name}'\nrole = '{role}'\nhash = '{HASH}'\n{more}\n")
    });
    std::fs::write(file.path(), rows.concat()).unwrap();
    let users = Authenticator::new(Directory::load(file.path()).unwrap()).unwrap();
    let rig = Rig::guarded(true, Some(Arc::new(users))).await;
    rig.open_store();
    rig
}

/// How a call with an empty message ends, or begins if it is answered.
async fn call(mut channel: Channel, method: &str) -> Code {
    let request = tonic::codegen::http::Request::post(format!("{}{method}", channel.origin()))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(http_body_util::Full::from(&b"\0\0\0\0\0"[..])))
        .unwrap();
    let answer = channel.call(request).await.unwrap();
    let status = Status::from_header_map(answer.headers());
    status.map_or(Code::Ok, |status| status.code())
}

#[test]
fn every_method_has_a_row_and_every_row_a_method() {
    let rows: BTreeSet<String> = ROLES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(rows.len(), ROLES.len(), "a row twice");
    let of_members = |it: &String| it.starts_with(OF_MEMBERS);
    let served: BTreeSet<String> = methods().into_iter().filter(|it| !of_members(it)).collect();
    assert_eq!(rows, served);
}

/// They are counted apart, since a user may keep them open; administrators' streams end by
/// themselves.
#[test]
fn every_stream_that_is_not_for_administrators_is_a_watch() {
    let set = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let mut streams = BTreeSet::new();
    for file in &set.file {
        for service in &file.service {
            let streaming = service.method.iter().filter(|it| it.server_streaming());
            streams.extend(
                streaming.map(|it| format!("{}.{}/{}", file.package(), service.name(), it.name())),
            );
        }
    }
    let for_users = ROLES.iter().filter(|(_, role)| *role < Role::Admin);
    let for_users: BTreeSet<&str> = for_users.map(|(name, _)| *name).collect();
    let streams: BTreeSet<&str> = streams.iter().map(String::as_str).collect();
    let found: BTreeSet<&str> = streams.intersection(&for_users).copied().collect();
    let named = WATCHES.iter().filter(|it| it.starts_with("fonn."));
    assert_eq!(found, named.copied().collect());
}

#[tokio::test]
async fn what_members_tell_each_other_is_not_on_the_admin_port() {
    let rig = guarded().await;
    let grpc = rig.admin.grpc().unwrap();
    let mounted: BTreeSet<&str> = grpc.services().collect();
    let ours = mounted.into_iter().filter(|it| it.starts_with("fonn."));
    let tabled = rows().map(|(name, _)| name.split('/').next().unwrap());
    assert_eq!(ours.collect::<BTreeSet<_>>(), tabled.collect());
    let root = rig.channel().await.with_login("root", b"secret");
    assert_eq!(call(root, "fonn.v1.Members/Map").await, Code::Unimplemented);
}

#[tokio::test]
async fn the_port_of_members_has_the_services_of_the_tables_and_no_others() {
    let rig = guarded().await;
    let mut routes = rig.admin.at_member();
    let mut asked = async |path: &str| {
        let request = tonic::codegen::http::Request::post(path)
            .header("content-type", "application/grpc")
            .body(Body::empty())
            .unwrap();
        let answer = routes.call(request).await.unwrap();
        let status = Status::from_header_map(answer.headers());
        status.map_or(Code::Ok, |status| status.code())
    };
    for (method, _) in rows() {
        let bare = asked(&format!("/{method}")).await;
        assert_eq!(bare, Code::Unauthenticated, "{method}");
    }
    for path in [
        "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/fonn.v1.Router/Status",
        "/metrics",
        "/",
    ] {
        assert_eq!(asked(path).await, Code::Unimplemented, "{path}");
    }
}

/// The rows of a node: routers have a service of their own.
fn rows() -> impl Iterator<Item = &'static (&'static str, Role)> {
    ROLES
        .iter()
        .filter(|(name, _)| !name.starts_with("fonn.v1.Router/"))
}

#[tokio::test]
async fn each_role_may_call_what_its_row_says_and_nothing_else() {
    let rig = guarded().await;
    for (method, needed) in rows() {
        let bare = call(rig.channel().await, method).await;
        assert_eq!(bare, Code::Unauthenticated, "{method}");
        for (user, role, _) in USERS {
            let channel = rig.channel().await.with_login(user, b"secret");
            let code = call(channel, method).await;
            assert_eq!(
                code == Code::PermissionDenied,
                role < *needed,
                "{method} as {user}: {code:?}"
            );
            assert_ne!(code, Code::Unauthenticated, "{method} as {user}");
        }
    }
    // An example of each, so that the table is not its own measure.
    let role = |method| ROLES.iter().find(|(name, _)| *name == method).unwrap().1;
    assert_eq!(role("fonn.v1.Admin/Status"), Role::Read);
    assert_eq!(role("fonn.v1.Admin/Flush"), Role::ReadWrite);
    assert_eq!(role("fonn.v1.Membership/Remove"), Role::Admin);
}

impl Rig {
    pub(super) async fn as_user(&self, user: &str) -> AdminClient<Channel> {
        let channel = self.channel().await.with_login(user, b"secret");
        let origin = channel.origin();
        AdminClient::with_origin(channel, origin)
    }

    async fn finds(&self, user: &str, namespace: &str) -> Result<bool, Code> {
        let request = KeyRequest {
            key: b"k".to_vec(),
            namespace: namespace.to_owned(),
            database: 0,
        };
        let answer = self.as_user(user).await.key(request).await;
        let answer = answer.map_err(|status| status.code())?.into_inner();
        let flushed = answer.flushed_below_version;
        Ok(answer
            .copies
            .iter()
            .any(|it| !it.tombstone && it.version > flushed))
    }

    async fn deletes(&self, user: &str, namespace: &str) -> Result<bool, Code> {
        let request = DeleteKeyRequest {
            key: b"k".to_vec(),
            namespace: namespace.to_owned(),
            database: 0,
        };
        let answer = self.as_user(user).await.delete_key(request).await;
        Ok(answer.map_err(|status| status.code())?.into_inner().existed)
    }

    async fn flushes(&self, user: &str, namespace: &str) -> Result<(), Code> {
        let request = FlushRequest {
            namespace: namespace.to_owned(),
            database: None,
        };
        let answer = self.as_user(user).await.flush(request).await;
        answer.map(|_| ()).map_err(|status| status.code())
    }
}

#[tokio::test]
async fn users_look_into_their_own_namespace_and_admins_into_all() {
    let rig = guarded().await;
    let space = |name| Space::new(namespace_number(name), 0);
    rig.set(space("main"), b"k", b"v", ExpirySpec::Never).await;
    assert_eq!(rig.finds("dev", "main").await, Ok(true));
    assert_eq!(rig.finds("dev", "").await, Ok(true), "the own one");
    assert_eq!(rig.finds("pr", "").await, Ok(false));
    assert_eq!(rig.finds("pr", "main").await, Ok(true), "its base");
    // Whether there is such a namespace is not told either.
    for other in ["default", "pull", "absent"] {
        let refused = rig.finds("dev", other).await;
        assert_eq!(refused, Err(Code::PermissionDenied), "{other}");
    }
    assert_eq!(rig.finds("root", "main").await, Ok(true));
    assert_eq!(rig.finds("root", "").await, Ok(false));
    assert_eq!(rig.finds("root", "absent").await, Err(Code::NotFound));
}

#[tokio::test]
async fn users_change_their_own_namespace_and_admins_all() {
    let rig = guarded().await;
    let names = ["main", "pull", "default"];
    for name in names {
        let space = Space::new(namespace_number(name), 0);
        rig.set(space, b"k", b"v", ExpirySpec::Never).await;
    }
    let denied = Err(Code::PermissionDenied);
    assert_eq!(
        rig.deletes("dev", "main").await,
        Err(Code::PermissionDenied)
    );
    assert_eq!(rig.deletes("pr", "main").await, Err(Code::PermissionDenied));
    assert_eq!(rig.flushes("pr", "main").await, denied);
    assert_eq!(rig.flushes("ci", "default").await, denied);
    assert_eq!(rig.flushes("ci", "").await, Err(Code::InvalidArgument));
    assert_eq!(rig.deletes("pr", "pull").await, Ok(true));
    assert_eq!(rig.finds("root", "pull").await, Ok(false));
    for name in ["main", "default"] {
        assert_eq!(rig.finds("root", name).await, Ok(true), "{name}");
    }
    assert_eq!(rig.flushes("ci", "main").await, Ok(()));
    assert_eq!(rig.finds("root", "main").await, Ok(false));
    assert_eq!(rig.finds("root", "default").await, Ok(true));
    assert_eq!(rig.flushes("root", "default").await, Ok(()));
    assert_eq!(rig.finds("root", "default").await, Ok(false));
}
