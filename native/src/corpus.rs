//! What the fuzzers have kept, run through the rules that they search by, without a fuzzer.

use crate::templates::scan;
use std::path::Path;

#[path = "../fuzz/src/frames_check.rs"]
mod frames_check;
#[path = "../fuzz/src/framing_check.rs"]
mod framing_check;
#[path = "../fuzz/src/http_head_check.rs"]
mod http_head_check;
#[path = "../fuzz/src/http_json_check.rs"]
mod http_json_check;
#[path = "../fuzz/src/message.rs"]
pub(crate) mod message;
#[path = "../fuzz/src/scan_check.rs"]
mod scan_check;

/// The inputs of a corpus, by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).expect("the corpus");
    let paths = files.map(|file| file.expect("a file").path());
    paths.map(|path| (path.display().to_string(), std::fs::read(&path).expect("a file"))).collect()
}

/// Runs a rule over a corpus; a finding names the file.
fn replay(target: &str, check: fn(&[u8])) {
    let inputs = corpus(target);
    assert!(inputs.len() >= 10, "the corpus of {target} is missing");
    for (name, input) in inputs {
        let kept = std::panic::catch_unwind(|| check(&input));
        assert!(kept.is_ok(), "{name} breaks a rule");
    }
}

#[test]
fn the_scanner_reads_what_the_fuzzer_kept() {
    replay("scan", scan_check::check);
}

#[test]
fn the_frame_walker_reads_what_the_fuzzer_kept() {
    replay("frames", frames_check::check);
}

#[test]
fn the_framing_reads_what_the_fuzzer_kept() {
    replay("framing", framing_check::check);
}

#[test]
fn http_heads_are_read_as_the_fuzzer_kept_them() {
    replay("http_head", http_head_check::check);
}

#[test]
fn tensors_as_json_are_read_as_the_fuzzer_kept_them() {
    replay("http_json", http_json_check::check);
}

#[test]
fn the_corpora_are_small() {
    let targets = ["scan", "frames", "framing", "http_head", "http_json"];
    let files: Vec<_> = targets.into_iter().flat_map(corpus).collect();
    let bytes: usize = files.iter().map(|(_, input)| input.len()).sum();
    assert!(files.len() <= 220 && bytes <= 200_000, "{} files, {bytes} bytes", files.len());
}

#[test]
fn the_scanners_corpus_meets_both_answers() {
    let accepted = |(_, message): &(String, Vec<u8>)| scan::Scanned::default().read(message).is_some();
    let (taken, left): (Vec<_>, Vec<_>) = corpus("scan").into_iter().partition(accepted);
    assert!(taken.len() >= 5 && left.len() >= 5, "{} accepted, {} not", taken.len(), left.len());
}

/// A field of a request, its length spelt in two bytes.
fn field(tag: u8, size: usize) -> Vec<u8> {
    let mut bytes = vec![tag << 3 | 2, size as u8 | 128, (size >> 7) as u8];
    bytes.resize(3 + size, b'x');
    bytes
}

#[test]
fn the_scanner_keeps_the_rules_at_its_bounds() {
    let (name, id, raw) = (1, 3, 7);
    for near in 0..8 {
        scan_check::check(&field(name, scan::HEAD - near));
        scan_check::check(&[field(name, 2000), field(raw, 1), field(2, scan::HEAD - 2000 - near)].concat());
        scan_check::check(
            &[field(name, 3000), field(id, 2 * scan::HEAD - 3000 - near), field(raw, 1)].concat(),
        );
        scan_check::check(&[field(name, 10), field(id, scan::ID_BYTES + 4 - near), field(raw, 1)].concat());
    }
    for tensors in scan::TENSORS - 1..=scan::TENSORS + 1 {
        scan_check::check(&field(raw, 1).repeat(tensors));
    }
}
