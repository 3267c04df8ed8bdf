//! A load generator for one stream of inferences: so many requests under way, each answer followed by the next request.
//!
//! It takes the options of `load` and prints what that prints; of the shapes it knows only `--concurrency`, and there is
//! one connection with one stream. Answers are counted and not decoded. Which of them is whose is taken from their order:
//! a server that overtakes shows times that are wrong one by one and right in their sum.

#[allow(dead_code)]
#[path = "load/plan.rs"]
mod plan;
#[path = "load/report.rs"]
mod report;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::Builder;
use h2::{RecvStream, SendStream};
use http::Request;
use plan::{Plan, Shape, USAGE};
use report::{Call, Window};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;
use tokio::net::TcpStream;

const METHOD: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
const PREFIX: usize = 5;
/// The first byte of an answer that is no error.
const RESPONSE: u8 = 2 << 3 | 2;
const WINDOW: u32 = 1 << 30;
const OK: u32 = 0;
const INTERNAL: u32 = 13;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// One stream, and what was asked over it.
struct Caller {
    send: SendStream<Bytes>,
    message: Bytes,
    expected: usize,
    start: Instant,
    until: u64,
    open: VecDeque<usize>,
    calls: Vec<Call>,
    wrong: String,
}

fn framed(payload: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(PREFIX + payload.len());
    message.put_u8(0);
    message.put_u32(payload.len() as u32);
    message.put_slice(payload);
    message.freeze()
}

/// The length of an answer on a stream whose response has this length.
fn streamed(length: usize) -> usize {
    let digits = (1..).find(|digits| length >> (7 * digits) == 0).unwrap_or(10);
    1 + digits + length
}

impl Caller {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn ask(&mut self) -> Result<()> {
        let now = self.now();
        self.open.push_back(self.calls.len());
        self.calls.push(Call { due: now, sent: now, done: 0, code: report::OPEN });
        Ok(self.send.send_data(self.message.clone(), false)?)
    }

    fn take(&mut self, answer: &[u8]) -> Result<()> {
        let number = self.open.pop_front().ok_or("an answer to nothing")?;
        let good = answer.first() == Some(&RESPONSE)
            && (self.expected == 0 || answer.len() == streamed(self.expected));
        if !good && self.wrong.is_empty() {
            self.wrong = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
        }
        let now = self.now();
        let call = &mut self.calls[number];
        (call.done, call.code) = (now, if good { OK } else { INTERNAL });
        if now < self.until {
            self.ask()?;
        } else if self.open.is_empty() {
            self.send.send_data(Bytes::new(), true)?;
        }
        Ok(())
    }

    /// Takes answers until the server ends the stream.
    async fn run(&mut self, body: &mut RecvStream) -> Result<()> {
        let mut rest = BytesMut::new();
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            rest.extend_from_slice(&data);
            while rest.len() >= PREFIX {
                let length = u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
                if rest.len() < PREFIX + length {
                    break;
                }
                rest.advance(PREFIX);
                self.take(&rest.split_to(length))?;
            }
        }
        Ok(())
    }
}

fn cpu_s() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

async fn drive(plan: &Plan) -> Result<Value> {
    let Shape::Closed(concurrency) = plan.shape else { return Err("a stream is a closed loop".into()) };
    let socket = TcpStream::connect(plan.target).await?;
    socket.set_nodelay(true)?;
    let mut builder = Builder::new();
    builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW).max_frame_size(1 << 20);
    let (client, connection) = builder.handshake(socket).await?;
    tokio::spawn(connection);
    let request = Request::post(format!("http://{}{METHOD}", plan.target))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let (response, send) = client.ready().await?.send_request(request, false)?;
    let (start, cpu_before) = (Instant::now(), cpu_s());
    let begin = (plan.warm_up_s * 1e9) as u64;
    let end = begin + (plan.seconds * 1e9) as u64;
    let mut caller = Caller {
        send,
        message: framed(&plan.payload),
        expected: plan.expect_bytes,
        start,
        until: end,
        open: VecDeque::new(),
        calls: Vec::with_capacity(1 << 20),
        wrong: String::new(),
    };
    (0..concurrency).try_for_each(|_| caller.ask())?;
    let mut body = response.await?.into_body();
    caller.run(&mut body).await?;
    let mut figures = report::summarise(&caller.calls, &Window { begin, end, bound: plan.bound_ns });
    figures.insert("calls".into(), json!(caller.calls.len() - caller.open.len()));
    figures.insert("cpu_s".into(), json!(cpu_s() - cpu_before));
    figures.insert("elapsed_s".into(), json!(start.elapsed().as_secs_f64()));
    figures.insert("unanswered".into(), json!(caller.open.len()));
    let wrong = Some((INTERNAL, caller.wrong)).filter(|(_, text)| !text.is_empty());
    let messages: BTreeMap<String, String> =
        wrong.map(|(code, text)| (code.to_string(), text)).into_iter().collect();
    figures.insert("messages".into(), json!(messages));
    Ok(Value::Object(figures))
}

fn main() -> ExitCode {
    let plan = match Plan::read(std::env::args().skip(1)) {
        Ok(plan) => plan,
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(drive(&plan))) {
        Ok(figures) => {
            println!("{figures}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", plan.target);
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod answers {
    use super::streamed;

    #[test]
    fn a_response_on_a_stream_is_longer_by_its_tag_and_length() {
        assert_eq!([streamed(1), streamed(127), streamed(128), streamed(20_000)], [3, 129, 131, 20_004]);
    }
}
