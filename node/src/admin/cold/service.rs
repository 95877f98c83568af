//! `fonn.v1.Cold`.

use std::sync::Arc;

use fonn_proto::grpc::v1::cold_server;
use fonn_proto::grpc::v1::{
    DoctorRequest, DoctorResponse, InspectSegmentRequest, InspectSegmentResponse,
    ListSegmentsRequest, ListSegmentsResponse, RebuildRequest, RebuildResponse, VerifyRequest,
    VerifyResponse,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, async_trait};

use super::{ColdAdmin, News};
use crate::admin::Admin;

/// Items of a page when none are asked for.
const PAGE_DEFAULT: u32 = 100;
/// Items of a page at most.
const PAGE_MAX: u32 = 1000;
/// Pieces of long work (doctor, verify, rebuild) at once: each reads the bucket as fast as it may.
pub(in crate::admin) const WORK_MAX: usize = 1;

/// The service.
pub(in crate::admin) struct ColdService {
    admin: Admin,
}

impl ColdService {
    pub(in crate::admin) fn new(admin: Admin) -> Self {
        Self { admin }
    }

    fn cold(&self) -> Result<&ColdAdmin, Status> {
        self.admin.node()?.cold.as_ref().ok_or_else(|| {
            Status::failed_precondition(
                "this node has no cold tier; start it with --cold-tier s3://bucket/prefix",
            )
        })
    }

    fn begin_work(&self) -> Result<OwnedSemaphorePermit, Status> {
        Arc::clone(&self.admin.0.cold_work)
            .try_acquire_owned()
            .map_err(|_| {
                Status::resource_exhausted(
                    "a doctor, verify or rebuild is already running on this node; wait for its end",
                )
            })
    }
}

fn bounded(page_size: u32) -> u32 {
    match page_size {
        0 => PAGE_DEFAULT,
        size => size.min(PAGE_MAX),
    }
}

#[async_trait]
impl cold_server::Cold for ColdService {
    type DoctorStream = News<Result<DoctorResponse, Status>>;

    async fn doctor(
        &self,
        _: Request<DoctorRequest>,
    ) -> Result<Response<Self::DoctorStream>, Status> {
        let cold = self.cold()?;
        let permit = self.begin_work()?;
        let findings = cold.doctor().map(move |finding| {
            // Held until the stream is dropped.
            let _ = &permit;
            Ok(DoctorResponse {
                finding: Some(finding),
            })
        });
        Ok(Response::new(Box::pin(findings)))
    }

    async fn list_segments(
        &self,
        request: Request<ListSegmentsRequest>,
    ) -> Result<Response<ListSegmentsResponse>, Status> {
        let mut query = request.into_inner();
        query.page_size = bounded(query.page_size);
        Ok(Response::new(self.cold()?.segments(&query)?))
    }

    async fn inspect_segment(
        &self,
        request: Request<InspectSegmentRequest>,
    ) -> Result<Response<InspectSegmentResponse>, Status> {
        let mut query = request.into_inner();
        query.page_size = bounded(query.page_size);
        Ok(Response::new(self.cold()?.inspect(&query).await?))
    }

    type VerifyStream = News<Result<VerifyResponse, Status>>;

    async fn verify(
        &self,
        request: Request<VerifyRequest>,
    ) -> Result<Response<Self::VerifyStream>, Status> {
        let cold = self.cold()?;
        let permit = self.begin_work()?;
        let segment = request.into_inner().segment;
        let news = cold.verify((!segment.is_empty()).then_some(segment));
        let news = news.map(move |news| {
            let _ = &permit;
            let event = Some(news?);
            Ok(VerifyResponse { event })
        });
        Ok(Response::new(Box::pin(news)))
    }

    type RebuildStream = News<Result<RebuildResponse, Status>>;

    async fn rebuild(
        &self,
        _: Request<RebuildRequest>,
    ) -> Result<Response<Self::RebuildStream>, Status> {
        let cold = self.cold()?;
        let permit = self.begin_work()?;
        let news = cold.rebuild().map(move |news| {
            let _ = &permit;
            let progress = Some(news?);
            Ok(RebuildResponse { progress })
        });
        Ok(Response::new(Box::pin(news)))
    }
}
