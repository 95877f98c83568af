//! Downloads of archives.

use fonn_reapi::Instance;
use fonn_server::Scope;
use hyper::Request;
use hyper::header::RANGE;

use super::{Layer, entry_key};
use crate::actions::parameter;
use crate::answer::Answer;
use crate::handler::{Call, Front};
use crate::route::{Operation, Route};
use crate::store::Store;

impl<S: Store> Front<S> {
    pub(super) async fn download<B>(
        &self,
        request: &Request<B>,
        route: &Route,
        scope: Scope,
        call: Call<'_>,
    ) -> Answer {
        let layer = parameter(request.uri().query().unwrap_or_default(), "layer");
        let layer = layer.map_or(Some(Layer::Own), |it| Layer::parse(&it));
        let scope = layer.and_then(|it| it.of(scope));
        let (Some(id), Some(scope)) = (route.digest, scope) else {
            return Answer::miss();
        };
        let archive = self.load_long(scope, Instance::default(), entry_key(&id), call.life);
        let Some(archive) = archive.await else {
            return Answer::miss();
        };
        let range = request.headers().get(RANGE);
        let has_body = route.operation == Operation::Read;
        self.answer_long(archive, range, has_body, call.life).await
    }
}
