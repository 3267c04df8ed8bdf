use super::*;
use crate::fastpath::admission::Admission;
use crate::handover::mailbox::Event;
use crate::http::front::{self as http_front, Answers};
use crate::http::json::Outline;
use crate::lanes::load::Price;
use crate::lanes::memory::status;
use crate::listen::quota::{Terms, Who};
use crate::measure::clock::now_ns;
use crate::resources::Resources;
use crate::rig::{Rig, SLOTS, spec};
use crate::templates::template::TemplateSpec;
use bytes::BytesMut;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const JSON: &str = r#"{"id":"","inputs":[]}"#;
const TARGET: &str = "/v2/models/m/infer";

/// A client, the front end between, and the worker.
struct Wire {
    rig: Rig,
    resources: Arc<Resources>,
    client: UnixStream,
    connection: JoinHandle<()>,
}

fn count(resources: &Resources, name: &str) -> u64 {
    resources.statistics.report().find(|(known, _)| *known == name).unwrap().1
}

fn key(json: &str) -> Vec<u8> {
    let mut outline = Outline::default();
    outline.read(TARGET.as_bytes(), json.as_bytes()).unwrap();
    outline.key
}

/// A front before what the rig serves.
fn front(rig: &Rig, limit: i64) -> Front {
    let resources = Resources { direct: rig.direct.clone(), ..crate::rig::resources(limit) };
    let limits: Vec<_> = http_front::LIMITS.iter().map(|(name, ..)| (name.to_string(), 60_000)).collect();
    Front::new(Arc::new(resources), limits, None, "s".into(), Answers::default(), None).unwrap()
}

fn wire() -> Wire {
    let rig = Rig::leased();
    let key = key(JSON);
    rig.direct.add_template(key, spec(1)).unwrap();
    let front = Arc::new(front(&rig, 1 << 16));
    let resources = front.resources.clone();
    let (client, socket) = UnixStream::pair().unwrap();
    let admission = front.admit(None).unwrap();
    let serving = serve(front, Stream::Unix(socket), "".into(), admission);
    Wire { rig, resources, client, connection: tokio::spawn(serving) }
}

fn connection(front: &Front, socket: UnixStream) -> Connection<'_> {
    let account = front.resources.quotas.account(Who::Local, 0);
    Connection::new(Server::new(front, Stream::Unix(socket), "".into(), account), "".into(), None)
}

fn request(id: &str) -> Vec<u8> {
    let json = JSON.replacen(r#""""#, &format!("\"{id}\""), 1);
    format!(
        "POST {TARGET} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\
         Inference-Header-Content-Length: {}\r\n\r\n{json}12345678",
        json.len() + 8,
        json.len()
    )
    .into_bytes()
}

impl Wire {
    async fn send(&mut self, request: &[u8]) {
        self.client.write_all(request).await.unwrap();
    }

    /// Until the worker has so many requests.
    async fn given(&self, count: u32) {
        while self.rig.direct.load(1).0 != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn answer(&mut self) -> String {
        let mut answer = vec![0; 4096];
        let length = timeout(Duration::from_secs(20), self.client.read(&mut answer)).await.unwrap().unwrap();
        String::from_utf8(answer[..length].to_vec()).unwrap()
    }

    /// What the application was handed: attempts.
    async fn handed(&self) -> u32 {
        loop {
            for event in self.resources.link.mailbox.take().unwrap() {
                if let Event::Http(_, _, attempts, _) = event {
                    return attempts;
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn end(self) -> Rig {
        drop(self.client);
        timeout(Duration::from_secs(20), self.connection).await.expect("its end").unwrap();
        for name in ["http_connections_open", "http_serving"] {
            assert_eq!(count(&self.resources, name), 0);
        }
        assert_eq!((self.resources.requests.used(), self.resources.answers.used()), (0, 0));
        self.rig
    }
}

#[tokio::test]
async fn what_has_a_template_is_answered_from_the_slot() {
    let mut wire = wire();
    for id in ["", "7", "a b"] {
        wire.send(&request(id)).await;
        wire.given(1).await;
        let at = wire.rig.worker.peek(0);
        let object = &wire.rig.tensors;
        let mut tensor = BytesMut::new();
        object.append_to(at.offset as usize, 8, &mut tensor);
        assert_eq!(&tensor[..], b"12345678");
        object.write(at.out_offset as usize, b"good");
        wire.rig.complete(status::OK);
        let named = if id.is_empty() { String::new() } else { format!("\"id\":\"{id}\",") };
        let json = format!("open{named}described");
        let answer = wire.answer().await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, format!("{json}good"));
        assert!(head.contains(&format!("Inference-Header-Content-Length: {}\r\n", json.len())), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", json.len() + 4)), "{head}");
    }
    assert_eq!(count(&wire.resources, "http_answered"), 3);
    assert_eq!(wire.end().await.free(), SLOTS);
}

#[tokio::test]
async fn what_the_worker_cannot_do_is_the_edges_with_its_attempts() {
    for (dies, attempts) in [(false, 0), (true, 1)] {
        let mut wire = wire();
        wire.send(&request("7")).await;
        wire.given(1).await;
        if dies {
            wire.rig.direct.close_lane(1, false);
        } else {
            wire.rig.complete(status::HAND_OVER);
        }
        assert_eq!(wire.handed().await, attempts);
        assert_eq!(wire.end().await.free(), SLOTS);
    }
}

#[tokio::test]
async fn what_would_be_late_is_refused_and_what_was_late_said_to_be() {
    let mut wire = wire();
    let second = 1_000_000_000;
    let key = key(JSON);
    let mut limited = spec(1);
    limited.default_timeout_ns = second / 2;
    wire.rig.direct.add_template(key, limited).unwrap();
    wire.send(&request("7")).await;
    wire.given(1).await;
    wire.rig.complete(status::EXPIRED);
    let late = wire.answer().await;
    assert!(late.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{late}");
    assert!(late.contains("{\"error\": \"[request id: 7] Request timeout expired"), "{late}");
    wire.rig
        .direct
        .price(1, Price { charge_per_row_ns: second, batch_ns: 2 * second, batch_rows: 1, margin_ns: 0 });
    let Admission::Flight(mut ahead) = wire.rig.admit(now_ns() + 9 * second / 4) else { panic!() };
    assert!(ahead.depart(&crate::rig::message()));
    wire.send(&request("8")).await;
    let refused = wire.answer().await;
    assert!(refused.starts_with("HTTP/1.1 429 Too Many Requests\r\nRetry-After: "), "{refused}");
    assert!(refused.ends_with("\r\n\r\n{\"error\": \"[request id: 8] too late\"}"), "{refused}");
    assert_eq!((count(&wire.resources, "http_expired"), count(&wire.resources, "http_late")), (1, 1));
    wire.end().await;
}

#[tokio::test]
async fn a_client_that_goes_cancels_its_request() {
    for halves in [false, true] {
        let mut wire = wire();
        wire.send(&request("7")).await;
        if halves {
            wire.client.shutdown().await.unwrap();
        }
        wire.given(1).await; // its end, too, has come to the connection
        let mut rig = wire.end().await;
        assert_eq!(rig.direct.news().0[0].1.cancelled, 1);
        rig.complete(status::OK);
        assert_eq!(rig.free(), SLOTS);
    }
}

#[tokio::test]
async fn a_connection_that_has_waited_is_handed_to_the_edge_anew() {
    let front = front(&Rig::new(), 1 << 16);
    let (_client, socket) = UnixStream::pair().unwrap();
    let mut connection = connection(&front, socket);
    let mut hand = |attempts, waited| {
        if let Some(edge) = &mut connection.edge {
            edge.used = Instant::now() - waited;
        }
        connection.edge(attempts).unwrap();
        front.resources.link.mailbox.take().unwrap().len()
    };
    let soon = front.keepalive / 2 - Duration::from_secs(20);
    let late = front.keepalive / 2 + Duration::from_millis(1); // the application might be about to give up
    let handed =
        [(0, soon), (0, soon), (0, late), (0, soon), (1, soon)].map(|(tries, waited)| hand(tries, waited));
    assert_eq!(handed, [1, 0, 1, 0, 1]);
}

#[tokio::test]
async fn without_a_lease_or_a_template_it_is_the_edges() {
    let mut unleased = wire();
    unleased.rig.direct.lease(1, 0);
    unleased.send(&request("7")).await;
    assert_eq!(unleased.handed().await, 0);
    unleased.end().await;
    let mut forgotten = wire();
    forgotten.rig.direct.drop_templates(None);
    forgotten.send(&request("7")).await;
    assert_eq!(forgotten.handed().await, 0);
    forgotten.end().await;
}

/// With an input of two singles as JSON and one of eight bytes, and an output of each.
const MIXED: &str = r#"{"inputs":[{"data":[]},{}]}"#;

fn mixed() -> Wire {
    let wire = wire();
    let spec = TemplateSpec {
        inputs: vec![(8, 0), (8, 8)],
        input_texts: vec!["f".into(), String::new()],
        outputs: vec![(b"".to_vec(), 64, 4), (b"".to_vec(), 72, 4)],
        output_texts: vec!["h".into(), String::new()],
        closing: b"closing".to_vec(),
        ..spec(1)
    };
    wire.rig.direct.add_template(key(MIXED), spec).unwrap();
    wire
}

fn mixed_request(data: &str) -> Vec<u8> {
    let json = MIXED.replacen("[]", &format!("[{data}]"), 1);
    let (whole, head) = (json.len() + 8, json.len());
    let lengths = format!("Content-Length: {whole}\r\nInference-Header-Content-Length: {head}");
    format!("POST {TARGET} HTTP/1.1\r\nHost: x\r\n{lengths}\r\n\r\n{json}12345678").into_bytes()
}

#[tokio::test]
async fn json_is_read_into_the_slot_and_written_from_it() {
    let mut wire = mixed();
    for data in ["1.5,-2", "[1.5],[-2.0]", " [ 15e-1 ,\n-2]"] {
        wire.send(&mixed_request(data)).await;
        wire.given(1).await;
        let at = wire.rig.worker.peek(0);
        let object = &wire.rig.tensors;
        let mut tensors = BytesMut::new();
        object.append_to(at.offset as usize, 16, &mut tensors);
        assert_eq!(tensors[..], [&1.5f32.to_le_bytes(), &(-2f32).to_le_bytes(), &b"12345678"[..]].concat());
        object.write(at.out_offset as usize, &[7, 0, 254, 255, 0, 0, 0, 0, b'g', b'o', b'o', b'd']);
        wire.rig.complete(status::OK);
        let answer = wire.answer().await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, "opendescribed7,-2closinggood");
        assert!(head.contains("Content-Type: application/octet-stream\r\n"), "{head}");
    }
    assert_eq!((count(&wire.resources, "http_answered"), count(&wire.resources, "http_json")), (3, 3));
    assert_eq!(wire.end().await.free(), SLOTS);
}

#[tokio::test]
async fn what_is_read_behind_a_large_request_does_not_keep_its_memory() {
    const BODY: usize = 1 << 18;
    let Wire { mut rig, .. } = mixed();
    let mut front = front(&rig, 1 << 20);
    (front.json_bytes, front.body_bytes) = (2 * BODY, 2 * BODY);
    let (client, socket) = UnixStream::pair().unwrap();
    let mut connection = connection(&front, socket);
    let (mut reading, mut writing) = client.into_split();
    let sending = tokio::spawn(async move {
        let large = mixed_request(&["1.5,", &" ".repeat(BODY), "-2"].concat());
        writing.write_all(&[&large[..], b"POST"].concat()).await.unwrap();
        writing
    });
    let Begun::Request(request) = connection.begin().await else { panic!() };
    let infer = request.infer.as_ref().unwrap();
    let worker = async {
        while rig.direct.load(1).0 != 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let writing = sending.await.unwrap();
        rig.complete(status::OK);
        let mut answer = [0; 4096];
        assert!(reading.read(&mut answer).await.unwrap() > 0);
        writing
    };
    let (tried, _writing) = tokio::join!(connection.server.serve(&request, infer), worker);
    assert!(matches!(tried, Tried::Answered));
    assert_eq!(&connection.server.client.inbound[..], b"POST");
    assert!(timeout(Duration::from_millis(1), connection.begin()).await.is_err());
    assert_eq!((&connection.server.client.inbound[..], front.resources.requests.used()), (&b"POST"[..], 0));
    assert!(!connection.server.client.inbound.try_reclaim(BODY), "its memory is kept");
}

#[tokio::test]
async fn json_that_the_edge_would_refuse_is_the_edges() {
    for data in ["1.5", "1.5,2,3", "1.5,x", "1.5,[2]", "1.5,1e39", "1.5,true", ""] {
        let mut wire = mixed();
        wire.send(&mixed_request(data)).await;
        assert_eq!(wire.handed().await, 0, "{data}");
        assert_eq!(wire.end().await.free(), SLOTS);
    }
}

#[tokio::test]
async fn an_answer_that_may_have_to_be_compressed_is_the_edges() {
    let mut wire = wire();
    let text =
        TemplateSpec { output_texts: vec!["f".into()], outputs: vec![(b"".to_vec(), 64, 60_000)], ..spec(1) };
    let text = TemplateSpec { span: 1 << 16, ..text };
    wire.rig.direct.add_template(key(JSON), text).unwrap();
    let asked =
        String::from_utf8(request("7")).unwrap().replacen("Host", "Accept-Encoding: gzip, br\r\nHost", 1);
    wire.send(asked.as_bytes()).await;
    assert_eq!(wire.handed().await, 0);
    assert_eq!(wire.end().await.free(), SLOTS);
}

#[tokio::test]
async fn who_asks_too_much_is_answered_before_the_rest_of_the_body_has_come() {
    let mut wire = wire();
    let hour = 3_600_000_000_000;
    let terms = Terms { interval_ns: hour, rate_text: "too fast".into(), ..Terms::default() };
    wire.resources.quotas.set(Terms::default(), vec![("unix".into(), terms)], 16, now_ns());
    wire.send(&request("7")).await;
    wire.given(1).await;
    wire.rig.complete(status::OK);
    assert!(wire.answer().await.starts_with("HTTP/1.1 200 OK"));
    let whole = request("8");
    let (begun, rest) = whole.split_at(whole.len() - 4);
    for _ in 0..2 {
        wire.send(begun).await;
        let refused = wire.answer().await;
        assert!(refused.starts_with("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\n"), "{refused}");
        assert!(refused.ends_with("{\"error\": \"[request id: <id_unknown>] too fast\"}"), "{refused}");
        wire.send(rest).await; // thrown away, and the connection goes on
    }
    assert_eq!(count(&wire.resources, "http_over_quota"), 2);
    let (_, refused) = wire.resources.quotas.figures();
    assert_eq!(refused.iter().map(|(_, rate, _)| rate).sum::<u64>(), 2);
    assert_eq!(wire.end().await.free(), SLOTS);
}
