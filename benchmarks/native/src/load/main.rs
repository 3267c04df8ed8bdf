//! A load generator for unary gRPC calls that is not the bottleneck: one thread, ready-made bytes, answers counted and
//! not decoded. It prints one line of JSON with the fields of `python -m benchmarks.load`.

mod arrivals;
mod caller;
mod connection;
mod frames;
mod plan;
mod report;
mod transport;

use caller::Caller;
use plan::{Plan, USAGE};
use report::Window;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::io::Result;
use std::process::ExitCode;
use std::time::Instant;

fn cpu_s() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

fn drive(plan: &Plan) -> Result<Value> {
    let mut caller = Caller::connect(plan)?;
    let (cpu_before, start) = (cpu_s(), Instant::now());
    let began = caller.run()?;
    let (cpu_s, elapsed_s) = (cpu_s() - cpu_before, start.elapsed().as_secs_f64());
    let begin = began + (plan.warm_up_s * 1e9) as u64;
    let window = Window { begin, end: begin + (plan.seconds * 1e9) as u64, bound: plan.bound_ns };
    let mut figures = report::summarise(&caller.calls, &window);
    figures.insert("calls".into(), json!(caller.calls.len() - caller.unanswered()));
    figures.insert("cpu_s".into(), json!(cpu_s));
    figures.insert("elapsed_s".into(), json!(elapsed_s));
    figures.insert("unanswered".into(), json!(caller.unanswered()));
    let messages = caller.messages.iter().map(|(code, text)| (code.to_string(), json!(text))).collect();
    figures.insert("messages".into(), Value::Object(messages));
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
    match drive(&plan) {
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
