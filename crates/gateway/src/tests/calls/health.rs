//! The health service, which needs no login.

use std::sync::Arc;

use fonn_auth::Authenticator;
use fonn_auth::testing::directory;
use fonn_reapi::messages::{HealthCheckRequest, HealthCheckResponse};

use super::super::fake::guarded;
use super::*;

const UNAUTHENTICATED: u16 = 16;

fn guarded_site() -> Site {
    let users = Authenticator::new(directory(&[("ci", "read-write")])).unwrap();
    let (store, front) = guarded(Arc::new(users));
    Site { store, front }
}

#[tokio::test]
async fn health_is_told_without_a_login_by_the_name_of_a_service() {
    let site = guarded_site();
    let check = async |service: &str| {
        let service = service.to_owned();
        let request = HealthCheckRequest { service };
        site.ask("/grpc.health.v1.Health/Check", &request).await
    };
    let serving = Ok(HealthCheckResponse { status: 1 });
    for service in [
        "",
        "build.bazel.remote.execution.v2.ContentAddressableStorage",
        "google.bytestream.ByteStream",
        "grpc.health.v1.Health",
    ] {
        assert_eq!(check(service).await, serving, "{service}");
    }
    for service in [
        "google.bytestream",
        "build.bazel.remote.execution.v2.Execution",
    ] {
        assert_eq!(check(service).await, Err(NOT_FOUND), "{service}");
    }
    assert_eq!(check(&"a".repeat(300)).await, Err(INVALID));
    for body in [&b""[..], b"\0\0\0", b"\0\0\0\0\x01\xff"] {
        let (code, _) = site.raw("/grpc.health.v1.Health/Check", body).await;
        assert_eq!(code, INVALID, "{body:?}");
    }
    let watch = frame(&HealthCheckRequest::default());
    let (code, _) = site.raw("/grpc.health.v1.Health/Watch", watch).await;
    assert_eq!(code, UNIMPLEMENTED);
    let (code, _) = site.raw(&format!("{STREAM}/Read"), "").await;
    assert_eq!(code, UNAUTHENTICATED);
}
