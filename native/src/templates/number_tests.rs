use super::*;

fn read(number: Number, text: &str) -> Option<Vec<u8>> {
    let mut into = Vec::new();
    let length = number.read(text.as_bytes(), &mut into)?;
    (length == text.len()).then_some(into)
}

fn double(text: &str) -> Option<u64> {
    read(Number::Double, text).map(|raw| u64::from_le_bytes(raw.try_into().unwrap()))
}

fn single(text: &str) -> Option<u32> {
    read(Number::Single, text).map(|raw| u32::from_le_bytes(raw.try_into().unwrap()))
}

fn written(number: Number, raw: &[u8]) -> String {
    let mut into = Vec::new();
    number.write(raw, &mut into);
    String::from_utf8(into).unwrap()
}

#[test]
fn whole_numbers_keep_their_range() {
    for (code, least, most) in [
        ("B", 0, u8::MAX.into()),
        ("H", 0, u16::MAX.into()),
        ("I", 0, u32::MAX.into()),
        ("Q", 0, i128::from(u64::MAX)),
        ("b", i8::MIN.into(), i8::MAX.into()),
        ("h", i16::MIN.into(), i16::MAX.into()),
        ("i", i32::MIN.into(), i32::MAX.into()),
        ("q", i64::MIN.into(), i128::from(i64::MAX)),
    ] {
        let number = Number::of_code(code).unwrap();
        for whole in [least, most, 0, 7] {
            let raw = read(number, &whole.to_string()).unwrap();
            assert_eq!(raw, whole.to_le_bytes()[..number.size()], "{code} {whole}");
            assert_eq!(written(number, &raw), whole.to_string());
        }
        for wrong in [least - 1, most + 1, i128::MAX] {
            assert_eq!(read(number, &wrong.to_string()), None, "{code} {wrong}");
        }
        for wrong in ["1.0", "1e0", "true", "\"1\"", "01", "+1", "-", "", "NaN", "18446744073709551617000"] {
            assert_eq!(read(number, wrong), None, "{code} {wrong}");
        }
        assert_eq!(read(number, "-0"), Some(vec![0; number.size()]));
    }
}

#[test]
fn truth_is_spelt_in_four_ways() {
    for (text, truth) in [("true", 1), ("false", 0), ("1", 1), ("0", 0), ("-0", 0)] {
        assert_eq!(read(Number::Bool, text), Some(vec![truth]), "{text}");
    }
    for wrong in ["2", "-1", "1.0", "tru", "True", "\"NaN\"", "null"] {
        assert_eq!(read(Number::Bool, wrong), None, "{wrong}");
    }
    assert_eq!(written(Number::Bool, &[0, 1, 255]), "false,true,true");
}

#[test]
fn floats_are_rounded_once_to_a_double_and_then_to_a_single() {
    for text in [
        "0.1",
        "-0.1",
        "1e23",
        "9007199254740993",
        "9007199254740993.0",
        "123456789012345678901234567890",
        "5e-324",
        "2.4703282292062327e-324",
        "2.47032822920623272e-324",
        "1.7976931348623157e308",
        "0.30000000000000004",
        "1e-400",
        "3.4028235677973366e38",
        "00.5",
        "1E+5",
        "1e-05",
        "0e999999",
        "0.000000000000000000000001",
        "72057594037927945",
        "1.00000000000000000000000000000000000001",
        "179769313486231580793e289",
    ] {
        let expected = (!text.starts_with("00")).then(|| text.parse::<f64>().unwrap().to_bits());
        assert_eq!(double(text), expected, "{text}");
    }
    assert_eq!(double("-0.0"), Some((-0.0f64).to_bits()));
    assert_eq!((double("-0"), single("-0")), (Some(0), Some(0)), "a whole number has no negative zero");
    assert_eq!(double("1e999"), Some(f64::INFINITY.to_bits()));
    assert_eq!(single("-1e999"), Some(f32::NEG_INFINITY.to_bits()));
    assert_eq!(double(&format!("1{}", "0".repeat(400))), None, "a whole number that is no double");
    assert_eq!(double(&format!("0.{}", "1".repeat(DIGITS))), None, "too long");
    assert_eq!(single("1e39"), None);
    assert_eq!(single("3.4028235677973366e38"), None);
    assert_eq!(single("1.00000017881393432617187499"), Some(0x3f80_0002), "as the double between is rounded");
    for (text, value) in NOT_FINITE {
        for text in [text.to_string(), format!("\"{text}\"")] {
            assert_eq!(double(&text), Some(value.to_bits()));
            assert_eq!(single(&text), Some((value as f32).to_bits()));
        }
    }
    for wrong in
        ["", "-", ".5", "1.", "1e", "1e+", "true", "\"1\"", "\"NaN", "\"nan\"", "nan", "-NaN", "null", "0x1"]
    {
        assert_eq!(double(wrong), None, "{wrong}");
    }
}

#[test]
fn doubles_are_written_as_python_writes_them() {
    for (value, text) in [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.1, "0.1"),
        (0.1f32.into(), "0.10000000149011612"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (-1.5e-7, "-1.5e-07"),
        (123456789012345680.0, "1.2345678901234568e+17"),
        (1e15, "1000000000000000.0"),
        (9999999999999998.0, "9999999999999998.0"),
        (1e16, "1e+16"),
        (1e22, "1e+22"),
        (5e-324, "5e-324"),
        (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
        (f64::MAX, "1.7976931348623157e+308"),
        (1e100, "1e+100"),
        (f64::from_bits(0x4002_3934_0000_0000), "2.2779312133789062"), // halfway: to the even digit
        (9_007_199_254_740_992.0, "9007199254740992.0"),
        (1e23, "1e+23"),
        (f64::NAN, "\"NaN\""),
        (f64::INFINITY, "\"Infinity\""),
        (f64::NEG_INFINITY, "\"-Infinity\""),
    ] {
        assert_eq!(written(Number::Double, &value.to_le_bytes()), text);
        assert!(text.len() < Number::Double.longest_text());
    }
    let pair = [1.5f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat();
    assert_eq!(written(Number::Single, &pair), "1.5,\"NaN\"");
}

#[test]
fn what_is_written_reads_the_same() {
    let mut seed = 1u64;
    for _ in 0..100_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let raw = (seed ^ seed >> 29).to_le_bytes();
        for number in [Number::Single, Number::Double, Number::Signed(8), Number::Unsigned(2)] {
            let raw = &raw[..number.size()];
            let text = written(number, raw);
            assert!(text.len() < number.longest_text());
            if !text.contains("NaN") {
                assert_eq!(read(number, &text).as_deref(), Some(raw), "{text}");
            }
        }
    }
}
