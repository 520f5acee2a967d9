//! A proxy on the loopback between a client and the S3 server that breaks things on purpose, or lies.
//!
//! Lying is what several real servers do: they answer 200 to a conditional create and ignore the condition. The proxy
//! takes `If-None-Match` and `If-Match` out of a request and signs it again (both are signed headers), so that a real
//! server carries it out unconditionally. It can begin to lie at any moment.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use crate::http1::Message;
use crate::plan::{Fault, FaultPlan};
use crate::sigv4::{Credentials, Signed, authorization};

const CONDITIONS: [&str; 2] = ["if-none-match", "if-match"];

/// What the proxy has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Requests read.
    pub requests: u64,
    /// 503s answered.
    pub busy: u64,
    /// Connections reset before the server saw the request.
    pub resets: u64,
    /// Answers swallowed, or replaced by a 500, after the server had carried the request out.
    pub answers_lost: u64,
    /// Bodies cut.
    pub bodies_cut: u64,
    /// Answers delayed.
    pub delays: u64,
    /// Conditions taken out of requests.
    pub lies: u64,
}

impl FaultCounts {
    /// Faults of every kind except mere delays.
    pub fn faults(&self) -> u64 {
        self.busy + self.resets + self.answers_lost + self.bodies_cut
    }
}

#[derive(Debug)]
struct State {
    upstream: SocketAddr,
    credentials: Credentials,
    plan: Mutex<FaultPlan>,
    lying: AtomicBool,
    /// requests, busy, resets, answers lost, bodies cut, delays, lies
    counts: [AtomicU64; 7],
}

/// The proxy; it ends when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    state: Arc<State>,
    runtime: Option<Runtime>,
}

impl FaultProxy {
    /// Listens on a free port of the loopback, in front of `upstream`. The credentials are those of the clients.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(upstream: SocketAddr, credentials: Credentials, plan: FaultPlan) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("fault-proxy")
            .enable_all()
            .build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            upstream,
            credentials,
            plan: Mutex::new(plan),
            lying: AtomicBool::new(false),
            counts: Default::default(),
        });
        let for_connections = Arc::clone(&state);
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&for_connections);
                // A connection that breaks is what this proxy is for; the client tells the test what came of it.
                tokio::spawn(async move {
                    let _ = state.serve(client).await;
                });
            }
        });
        Ok(Self { address, state, runtime: Some(runtime) })
    }

    /// `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on these faults.
    pub fn set_plan(&self, plan: FaultPlan) {
        *self.state.plan.lock().unwrap_or_else(PoisonError::into_inner) = plan;
    }

    /// Begins or ceases to ignore the conditions of requests.
    pub fn set_lying(&self, lying: bool) {
        self.state.lying.store(lying, Ordering::SeqCst);
    }

    /// What it has done so far.
    pub fn counts(&self) -> FaultCounts {
        let [requests, busy, resets, answers_lost, bodies_cut, delays, lies] =
            self.state.counts.each_ref().map(|count| count.load(Ordering::SeqCst));
        FaultCounts { requests, busy, resets, answers_lost, bodies_cut, delays, lies }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}

impl State {
    fn count(&self, which: usize) {
        self.counts[which].fetch_add(1, Ordering::SeqCst);
    }

    async fn serve(&self, client: TcpStream) -> Result<()> {
        client.set_nodelay(true)?;
        let mut client = BufReader::new(client);
        let mut server: Option<BufReader<TcpStream>> = None;
        while let Some(mut request) = Message::read_request(&mut client).await? {
            self.count(0);
            let (method, target) = request.target()?;
            let (method, path) = (method.to_owned(), target.split('?').next().unwrap_or_default().to_owned());
            let fault = self.plan.lock().unwrap_or_else(PoisonError::into_inner).decide(&method, &path);
            match fault {
                Some(Fault::Busy) => {
                    self.count(1);
                    busy().write(client.get_mut(), None).await?;
                    if closes(&request) {
                        return Ok(());
                    }
                    continue;
                }
                Some(Fault::ResetBefore) => {
                    self.count(2);
                    return reset(client);
                }
                Some(Fault::Delay(delay)) => {
                    self.count(5);
                    tokio::time::sleep(delay).await;
                }
                Some(Fault::AnswerLost | Fault::FailedAfter | Fault::BodyCut) | None => {}
            }
            if self.lying.load(Ordering::SeqCst) && self.take_conditions_out(&mut request)? {
                self.count(6);
            }
            let answer = match self.ask(&mut server, &request, &method).await {
                Ok(answer) => answer,
                // The server is down: what a client sees then is a broken connection.
                Err(_) => return reset(client),
            };
            match fault {
                Some(Fault::AnswerLost) => {
                    self.count(3);
                    return reset(client);
                }
                Some(Fault::FailedAfter) => {
                    self.count(3);
                    failed().write(client.get_mut(), None).await?;
                }
                Some(Fault::BodyCut) if answer.body.len() > 1 => {
                    self.count(4);
                    answer.write(client.get_mut(), Some(answer.body.len() / 2)).await?;
                    return reset(client);
                }
                _ => answer.write(client.get_mut(), None).await?,
            }
            if closes(&answer) {
                server = None;
            }
            if closes(&request) || closes(&answer) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends the request and reads the answer, on a connection kept for the client's. An error is passed on as one:
    /// asking again here would carry a request out twice behind the client's back.
    async fn ask(&self, kept: &mut Option<BufReader<TcpStream>>, request: &Message, method: &str) -> Result<Message> {
        if kept.is_none() {
            let server = TcpStream::connect(self.upstream).await.context("the server does not listen")?;
            server.set_nodelay(true)?;
            *kept = Some(BufReader::new(server));
        }
        let server = kept.as_mut().context("a connection was just made")?;
        request.write(server.get_mut(), None).await?;
        let answer = Message::read_answer(server, method).await;
        if answer.is_err() {
            *kept = None;
        }
        answer
    }

    /// Whether there was a condition. The request is signed again without it, with the client's own time and scope.
    fn take_conditions_out(&self, request: &mut Message) -> Result<bool> {
        let before = request.headers.len();
        request.headers.retain(|(name, _)| !CONDITIONS.iter().any(|condition| name.eq_ignore_ascii_case(condition)));
        if request.headers.len() == before {
            return Ok(false);
        }
        let Some(old) = request.header("authorization").map(str::to_owned) else { return Ok(true) };
        let part =
            |name: &str| old.split([',', ' ']).find_map(|word| word.trim().strip_prefix(name)).map(str::to_owned);
        let region = part("Credential=")
            .and_then(|scope| scope.rsplit('/').nth(2).map(str::to_owned))
            .context("an Authorization without a credential scope")?;
        let names = part("SignedHeaders=").context("an Authorization without SignedHeaders")?;
        let signed: Vec<(String, String)> = names
            .split(';')
            .filter(|name| !CONDITIONS.contains(name))
            .filter_map(|name| request.header(name).map(|value| (name.to_owned(), value.to_owned())))
            .collect();
        let (method, target) = request.target()?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let authorization = authorization(
            &self.credentials,
            &Signed {
                method,
                path,
                query,
                payload_hash: request.header("x-amz-content-sha256").unwrap_or("UNSIGNED-PAYLOAD"),
                timestamp: request.header("x-amz-date").context("a signed request without x-amz-date")?,
                region: &region,
            },
            &signed,
        )?;
        for (name, value) in &mut request.headers {
            if name.eq_ignore_ascii_case("authorization") {
                *value = authorization.clone();
            }
        }
        Ok(true)
    }
}

fn closes(message: &Message) -> bool {
    message.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
}

fn busy() -> Message {
    refusal("503 Slow Down", "SlowDown")
}

fn failed() -> Message {
    refusal("500 Internal Server Error", "InternalError")
}

fn refusal(status: &str, code: &str) -> Message {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>Try again.</Message></Error>"
    );
    Message {
        start: format!("HTTP/1.1 {status}"),
        headers: vec![
            ("Content-Type".to_owned(), "application/xml".to_owned()),
            ("Content-Length".to_owned(), body.len().to_string()),
        ],
        body: body.into_bytes(),
    }
}

/// Closes with RST instead of FIN, as a crashed peer or a load balancer does.
fn reset(client: BufReader<TcpStream>) -> Result<()> {
    client.into_inner().set_zero_linger()?;
    Ok(())
}
