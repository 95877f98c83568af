//! `fonn.v1.Settings`.

use fonn_proto::grpc::v1::settings_client::SettingsClient;
use fonn_proto::grpc::v1::{ConfigRequest, SetCodecRequest, Setting, SettingOrigin};

use super::*;

impl Rig {
    async fn told(&self, key: &str) -> Setting {
        let channel = self.channel().await;
        let origin = channel.origin();
        let mut client = SettingsClient::with_origin(channel, origin);
        let config = client.config(ConfigRequest {}).await.unwrap().into_inner();
        let found = config.settings.into_iter().find(|it| it.key == key);
        found.unwrap()
    }
}

#[tokio::test]
async fn settings_are_told_before_the_store_is_open() {
    let rig = Rig::starting(true).await;
    let budget = rig.told("ram_budget").await;
    assert_eq!(budget.value, "16m");
    assert_eq!(budget.origin(), SettingOrigin::Default);
    assert!(budget.can_reload && budget.changed_at_ms == 0);
}

#[tokio::test]
async fn a_codec_that_an_admin_set_is_told_with_its_origin() {
    let rig = Rig::open().await;
    let request = SetCodecRequest {
        level: "fresh".to_owned(),
        codec: "zstd:1".to_owned(),
    };
    rig.admin().await.set_codec(request).await.unwrap();
    let codec = rig.told("codec").await;
    assert_eq!(
        codec.value,
        "ram=none,fresh=zstd:1,compacted=zstd:3,cold=zstd:9"
    );
    assert_eq!(codec.origin(), SettingOrigin::Admin);
    assert!(codec.changed_at_ms > 0);
}
