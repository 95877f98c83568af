//! A gRPC client that knows of a port nothing but what reflection tells it, as grpcurl does.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{BufMut as _, Bytes};
use fonn_admin::Channel;
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::{Code, Status};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

/// For one call, and for the connection.
const LIMIT: Duration = Duration::from_secs(60);

/// Before a message: not compressed, and its length in four bytes.
const FRAME_HEAD: usize = 5;

/// A connection to a port.
#[derive(Debug)]
pub struct Reflected {
    runtime: Runtime,
    channel: Channel,
}

impl Reflected {
    /// Connects to an admin port, HOST:PORT; logged in as `login`, a name and a password, if there
    /// is one.
    ///
    /// # Errors
    /// When no server speaks HTTP/2 there.
    pub fn connect(admin: &str, login: Option<(&str, &str)>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let channel = runtime.block_on(Channel::connect(admin, LIMIT))?;
        let channel = match login {
            Some((user, password)) => channel.with_login(user, password.as_bytes()),
            None => channel,
        };
        Ok(Self { runtime, channel })
    }

    /// Has every call answered by that member of the cluster.
    ///
    /// # Errors
    /// When that is no name.
    pub fn for_member(self, name: &str) -> Result<Self> {
        let channel = self.channel.for_member(name).context("no name")?;
        Ok(Self { channel, ..self })
    }

    fn wait<T>(&self, answer: impl Future<Output = T>) -> Result<T> {
        // The timer is the runtime's own.
        let answered = self
            .runtime
            .block_on(async { timeout(LIMIT, answer).await });
        answered.context("no answer in time")
    }

    fn ask(&self, request: MessageRequest) -> Result<MessageResponse> {
        let request = ServerReflectionRequest {
            message_request: Some(request),
            ..ServerReflectionRequest::default()
        };
        let (channel, origin) = (self.channel.clone(), self.channel.origin());
        let mut client = ServerReflectionClient::with_origin(channel, origin);
        let answer = async {
            let requests = tokio_stream::once(request);
            let mut answers = client.server_reflection_info(requests).await?.into_inner();
            answers.message().await
        };
        let answer = self.wait(answer)??;
        let answer = answer.and_then(|answer| answer.message_response);
        answer.context("the reflection service answered nothing")
    }

    /// The services that are listed.
    ///
    /// # Errors
    /// When they cannot be.
    pub fn services(&self) -> Result<Vec<String>> {
        match self.ask(MessageRequest::ListServices(String::new()))? {
            MessageResponse::ListServicesResponse(list) => {
                Ok(list.service.into_iter().map(|it| it.name).collect())
            }
            other => bail!("asked for services, told {other:?}"),
        }
    }

    /// The methods of a service, from the file that it is in and from those that the file imports.
    ///
    /// # Errors
    /// When the descriptors cannot be had, or do not fit together.
    pub fn methods(&self, service: &str) -> Result<Vec<MethodDescriptor>> {
        let mut wanted = vec![MessageRequest::FileContainingSymbol(service.to_owned())];
        let (mut files, mut known) = (Vec::new(), BTreeSet::new());
        while let Some(request) = wanted.pop() {
            let answer = self.ask(request)?;
            let MessageResponse::FileDescriptorResponse(found) = answer else {
                bail!("asked for a file of {service}, told {answer:?}");
            };
            for file in found.file_descriptor_proto {
                let file = prost_types::FileDescriptorProto::decode(&*file)?;
                if !known.insert(file.name().to_owned()) {
                    continue;
                }
                let imports = file.dependency.iter().cloned();
                wanted.extend(imports.map(MessageRequest::FileByFilename));
                files.push(file);
            }
        }
        let mut pool = DescriptorPool::new();
        pool.add_file_descriptor_protos(files)?;
        let service = pool.get_service_by_name(service);
        let service = service.context("the file has no such service")?;
        Ok(service.methods().collect())
    }

    /// How a call with an empty message ends, or begins if it is answered by a stream.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn begin(&self, method: &MethodDescriptor) -> Result<Code> {
        let message = DynamicMessage::new(method.input());
        let head = async {
            let response = self.send(method, &message).await?;
            Ok(status(response.headers()))
        };
        let found: Result<_> = self.wait(head)?;
        // A call that is answered has its status at the end.
        Ok(found?.map_or(Code::Ok, |status| status.code()))
    }

    /// Calls a method of one answer, `package.Service/Method`, with an empty message.
    ///
    /// # Errors
    /// When it is not answered well.
    pub fn call(&self, method: &str) -> Result<DynamicMessage> {
        let (service, name) = method.split_once('/').context("no method")?;
        let methods = self.methods(service)?;
        let method = methods.into_iter().find(|it| it.name() == name);
        let method = method.context("the service has no such method")?;
        let message = DynamicMessage::new(method.input());
        let answer = async {
            let response = self.send(&method, &message).await?;
            if let Some(status) = status(response.headers()) {
                bail!("{status}");
            }
            let body = response.into_body().collect().await?;
            if let Some(status) = body.trailers().and_then(status) {
                ensure!(status.code() == Code::Ok, "{status}");
            }
            Ok(body.to_bytes())
        };
        let body: Result<Bytes> = self.wait(answer)?;
        let message = body?.get(FRAME_HEAD..).map(Bytes::copy_from_slice);
        let message = message.context("no message in the answer")?;
        Ok(DynamicMessage::decode(method.output(), message)?)
    }

    async fn send(
        &self,
        method: &MethodDescriptor,
        message: &DynamicMessage,
    ) -> Result<Response<Body>> {
        let mut channel = self.channel.clone();
        let (origin, service) = (channel.origin(), method.parent_service());
        let path = format!("{origin}{}/{}", service.full_name(), method.name());
        let encoded = message.encode_to_vec();
        let mut frame = Vec::with_capacity(FRAME_HEAD + encoded.len());
        frame.put_u8(0);
        frame.put_u32(u32::try_from(encoded.len())?);
        frame.put_slice(&encoded);
        let request = Request::post(path)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Body::new(Full::new(Bytes::from(frame))))?;
        Ok(channel.call(request).await?.map(Body::new))
    }
}

fn status(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers)
}

/// Lists the services, and has every method of each answer something.
///
/// # Errors
/// With the first that is listed but not there.
pub fn every_listed_method_is_there(port: &Reflected) -> Result<Vec<String>> {
    let services = port.services()?;
    for service in &services {
        let methods = port.methods(service)?;
        ensure!(!methods.is_empty(), "{service} has no methods");
        for method in methods {
            let code = port.begin(&method)?;
            let name = method.full_name();
            ensure!(code != Code::Unimplemented, "{name} is listed only");
        }
    }
    Ok(services)
}
