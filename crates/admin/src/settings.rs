//! `fonn.v1.Settings`: the settings in force, on the admin port of every program.

use fonn_base::clock::Clock;
use fonn_base::config::{InForce, Origin, Setting};
use fonn_proto::grpc::v1::settings_server::{self, SettingsServer};
use fonn_proto::grpc::v1::{self, ConfigRequest, ConfigResponse, SettingOrigin};
use tonic::{Request, Response, Status, async_trait};

/// The service.
#[derive(Clone, Debug)]
pub struct SettingsService {
    settings: InForce,
    clock: Clock,
}

impl SettingsService {
    /// The server of these settings.
    #[must_use]
    pub fn server(settings: InForce, clock: Clock) -> SettingsServer<Self> {
        SettingsServer::new(Self { settings, clock })
    }
}

const fn origin(origin: Origin) -> SettingOrigin {
    match origin {
        Origin::Default => SettingOrigin::Default,
        Origin::File => SettingOrigin::File,
        Origin::Environment => SettingOrigin::Environment,
        Origin::Flag => SettingOrigin::Flag,
        Origin::Admin => SettingOrigin::Admin,
    }
}

fn message(setting: Setting) -> v1::Setting {
    v1::Setting {
        key: setting.key,
        value: setting.value,
        origin: origin(setting.origin).into(),
        can_reload: setting.can_reload,
        changed_at_ms: setting.changed_at_ms,
        after_restart: setting.after_restart,
    }
}

#[async_trait]
impl settings_server::Settings for SettingsService {
    async fn config(&self, _: Request<ConfigRequest>) -> Result<Response<ConfigResponse>, Status> {
        let file = self.settings.file();
        Ok(Response::new(ConfigResponse {
            settings: self.settings.list().into_iter().map(message).collect(),
            file: file.map_or_else(String::new, |file| file.display().to_string()),
            now_ms: self.clock.wall_ms(),
        }))
    }
}
