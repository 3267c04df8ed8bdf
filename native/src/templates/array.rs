//! An array of numbers in JSON, flat or nested, read into the bytes of a tensor: by the letter, in steps, and without
//! taking memory for its depth. Whatever the application would refuse is *strange*, and the application's to refuse in
//! its words.

use crate::templates::number::Number;

/// Deepest nesting that is read; the application reads more.
const DEPTH: usize = 16;
/// How much text a step reads at most, and some.
const STEP: usize = 16 * 1024;

/// How it goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is more to read.
    More,
    /// That was all, and it is as many elements as there should be.
    Whole,
    /// It is not for the front end.
    Strange,
}

/// Reads what is between the outer brackets.
pub(crate) struct Array<'a> {
    text: &'a [u8],
    position: usize,
    number: Number,
    /// Elements that are missing.
    left: usize,
    depth: usize,
    /// How deep the elements lie; 0: none has come.
    leaf: usize,
    /// How long the first array at each depth was, since all of one depth must be of one length; 0: none has ended.
    lengths: [usize; DEPTH],
    /// How long the open array at each depth is.
    counts: [usize; DEPTH],
    /// A value must come, not what follows one.
    wants: bool,
}

impl<'a> Array<'a> {
    /// Of `elements` in `text`.
    pub(crate) fn new(text: &'a [u8], number: Number, elements: usize) -> Self {
        Self {
            text,
            position: 0,
            number,
            left: elements,
            depth: 0,
            leaf: 0,
            lengths: [0; DEPTH],
            counts: [0; DEPTH],
            wants: true,
        }
    }

    /// Appends the bytes of the next elements.
    pub(crate) fn step(&mut self, into: &mut Vec<u8>) -> Step {
        let pause = self.position.saturating_add(STEP);
        while self.position < pause {
            let Some(byte) = self.text.get(self.position) else {
                let whole = self.depth == 0 && self.left == 0 && !self.wants;
                return if whole { Step::Whole } else { Step::Strange };
            };
            let good = match byte {
                b' ' | b'\t' | b'\n' | b'\r' => Some(1),
                b'[' if self.wants => self.open(),
                _ if self.wants => self.element(into),
                b',' => {
                    self.wants = true;
                    Some(1)
                }
                b']' => self.close(),
                _ => None,
            };
            match good {
                Some(length) => self.position += length,
                None => return Step::Strange,
            }
        }
        Step::More
    }

    fn open(&mut self) -> Option<usize> {
        self.depth += 1;
        if self.depth == DEPTH || (self.leaf > 0 && self.depth >= self.leaf) {
            return None;
        }
        self.counts[self.depth] = 0;
        Some(1)
    }

    fn element(&mut self, into: &mut Vec<u8>) -> Option<usize> {
        if self.leaf == 0 {
            self.leaf = self.depth + 1;
        }
        if self.leaf != self.depth + 1 || self.left == 0 {
            return None;
        }
        let length = self.number.read(&self.text[self.position..], into)?;
        self.left -= 1;
        self.counts[self.depth] += 1;
        self.wants = false;
        Some(length)
    }

    fn close(&mut self) -> Option<usize> {
        let (length, count) = (&mut self.lengths[self.depth], self.counts[self.depth]);
        if *length == 0 {
            *length = count;
        }
        if *length != count || self.depth == 0 {
            return None;
        }
        self.depth -= 1;
        self.counts[self.depth] += 1;
        Some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, elements: usize) -> Option<Vec<u8>> {
        let mut into = Vec::new();
        let mut array = Array::new(text.as_bytes(), Number::Unsigned(1), elements);
        loop {
            match array.step(&mut into) {
                Step::More => {}
                Step::Whole => return Some(into),
                Step::Strange => return None,
            }
        }
    }

    #[test]
    fn arrays_are_flat_or_evenly_nested() {
        for text in
            ["1,2,3,4", " 1 ,\t2\n,3,\r4 ", "[1,2],[3,4]", "[[1],[2]] , [ [3],[4] ]", "[1],[2],[3],[4]"]
        {
            assert_eq!(read(text, 4), Some(vec![1, 2, 3, 4]), "{text}");
        }
        assert_eq!(read("[[[7]]]", 1), Some(vec![7]));
        let long = "7,".repeat(3 * STEP) + "7";
        assert_eq!(read(&long, 3 * STEP + 1).unwrap().len(), 3 * STEP + 1);
        let deep = format!("{}7{}", "[".repeat(DEPTH - 1), "]".repeat(DEPTH - 1));
        assert_eq!(read(&deep, 1), Some(vec![7]));
    }

    #[test]
    fn what_is_strange_is_not_read() {
        let deep = format!("{}7{}", "[".repeat(DEPTH), "]".repeat(DEPTH));
        for text in [
            "",
            "1",
            "1,2,3",
            "1,",
            ",1,2",
            "1,,2",
            "1 2",
            "[1,2",
            "1,2]",
            "[1,2]]",
            "1,[2]",
            "[1],2",
            "[1],[[2]]",
            "[[1]],[2]",
            "[1,2],[3]",
            "[],[1,2]",
            "[1,2],[]",
            "[]",
            "1,2 x",
            "1;2",
            "256,1",
            "\"1\",2",
            "[1]2",
            "1[2]",
            "null,1",
            "{},1",
            "1,2\u{0}",
            &deep,
        ] {
            assert_eq!(read(text, 2), None, "{text}");
        }
        assert_eq!(read("", 0), None);
        assert_eq!(read("[]", 0), None);
    }
}
