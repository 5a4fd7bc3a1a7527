//! Unified diffs of textual IR that see through renumbering.
//!
//! A pass that drops one node renumbers all that follow, and a plain diff would show nearly every
//! line. Here two lines match if they are the same but for the numbers of values, and a matched
//! line counts as unchanged if its operands are matched to each other too. Numbers are those after
//! the pass; a value that is gone keeps its old number with a prime: `v12'`.

use rustc_hash::FxHashMap;
use similar::{Algorithm, DiffOp, capture_diff_slices, group_diff_ops};
use std::fmt::Write;

/// Lines shown around a change.
const CONTEXT: usize = 3;

/// A line in parts: the text between numbered names, and the names (`v12`, `w3`, `a0`, `b7`).
struct Line<'a> {
    text: &'a str,
    /// The line with every name cut to its letter.
    shape: String,
    names: Vec<&'a str>,
    /// How many of the names come before the equals sign: what the line defines.
    defined: usize,
}

impl<'a> Line<'a> {
    fn new(text: &'a str) -> Self {
        let mut line = Self { text, shape: String::new(), names: Vec::new(), defined: 0 };
        let mut in_string = false;
        let mut rest = text;
        let mut previous = ' ';
        while let Some(c) = rest.chars().next() {
            let digits = rest[c.len_utf8()..].bytes().take_while(u8::is_ascii_digit).count();
            let end = c.len_utf8() + digits;
            let follows = rest[end..].chars().next().unwrap_or(' ');
            let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
            let is_name = "vwsab".contains(c) && digits > 0;
            if is_name && !in_string && !is_part(previous) && !is_part(follows) {
                line.names.push(&rest[..end]);
                line.shape.push(c);
                previous = c;
                rest = &rest[end..];
                continue;
            }
            if c == '=' && !in_string && line.defined == 0 && previous == ' ' {
                line.defined = line.names.len();
            }
            in_string ^= c == '"' && previous != '\\';
            line.shape.push(c);
            previous = c;
            rest = &rest[c.len_utf8()..];
        }
        line
    }

    /// The line with each name as `rename` has it.
    fn renamed(&self, rename: impl Fn(&str) -> String) -> String {
        let mut out = String::with_capacity(self.text.len());
        let mut at = 0;
        let start = self.text.as_ptr() as usize;
        for name in &self.names {
            let here = name.as_ptr() as usize - start;
            out.push_str(&self.text[at..here]);
            out.push_str(&rename(name));
            at = here + name.len();
        }
        out.push_str(&self.text[at..]);
        out
    }
}

/// The difference between two texts of a module, in the unified format; empty if there is none.
/// It is for reading: numbers of values that only moved are not shown as changed.
pub fn unified_diff(before: &str, after: &str, before_name: &str, after_name: &str) -> String {
    let old: Vec<Line<'_>> = before.lines().map(Line::new).collect();
    let new: Vec<Line<'_>> = after.lines().map(Line::new).collect();
    let shapes = |lines: &[Line<'_>]| lines.iter().map(|l| l.shape.clone()).collect::<Vec<_>>();
    let ops = capture_diff_slices(Algorithm::Histogram, &shapes(&old), &shapes(&new));
    let mut matching = Matching::default();
    let ops = matching.refine(&old, &new, ops);
    let groups = group_diff_ops(ops, CONTEXT);
    let mut out = String::new();
    for (i, group) in groups.iter().enumerate() {
        if i == 0 {
            // Writing to a String never fails.
            let _ = writeln!(out, "--- {before_name}\n+++ {after_name}");
        }
        write_hunk(&mut out, &old, &new, &matching, group);
    }
    out
}

/// Which old name became which new one. Names are looked up as of the last line that defined
/// them, so that the bodies of regions and pieces, whose names begin anew, do not mix.
#[derive(Default)]
struct Matching<'a> {
    /// `None` is a name whose line is gone.
    renamed: FxHashMap<&'a str, Option<&'a str>>,
    /// Renamings of the old lines, for those that are shown.
    old_lines: FxHashMap<usize, Vec<String>>,
}

impl<'a> Matching<'a> {
    /// Splits matched lines off that read other values now.
    fn refine(&mut self, old: &[Line<'a>], new: &[Line<'a>], ops: Vec<DiffOp>) -> Vec<DiffOp> {
        let mut refined: Vec<DiffOp> = Vec::new();
        for op in ops {
            let (old_range, new_range) = (op.old_range(), op.new_range());
            let DiffOp::Equal { .. } = op else {
                for at in old_range {
                    self.forget(at, &old[at]);
                }
                refined.push(op);
                continue;
            };
            for (at, to) in old_range.zip(new_range) {
                let same = self.meet(&old[at], &new[to]);
                if !same {
                    let shown = self.shown(&old[at]);
                    self.old_lines.insert(at, shown);
                }
                push(&mut refined, at, to, same);
            }
        }
        refined
    }

    /// Takes over the definitions of a matched pair, and says whether it reads the same values.
    fn meet(&mut self, old: &Line<'a>, new: &Line<'a>) -> bool {
        let mut same = true;
        for (i, (from, to)) in old.names.iter().zip(&new.names).enumerate() {
            if i < old.defined {
                self.renamed.insert(from, Some(to));
            } else {
                same &= self.renamed.get(from).copied().unwrap_or(Some(from)) == Some(*to);
            }
        }
        same
    }

    /// A line that is gone: what it defined is gone too.
    fn forget(&mut self, at: usize, line: &Line<'a>) {
        for name in &line.names[..line.defined] {
            self.renamed.insert(name, None);
        }
        let shown = self.shown(line);
        self.old_lines.insert(at, shown);
    }

    fn shown(&self, line: &Line<'a>) -> Vec<String> {
        let name = |name: &&'a str| match self.renamed.get(name) {
            Some(None) => format!("{name}'"),
            Some(Some(to)) => (*to).to_owned(),
            None => (*name).to_owned(),
        };
        line.names.iter().map(name).collect()
    }

    fn old_line(&self, at: usize, line: &Line<'a>) -> String {
        let Some(names) = self.old_lines.get(&at) else { return line.text.to_owned() };
        let next = std::cell::Cell::new(0);
        line.renamed(|_| {
            let i = next.replace(next.get() + 1);
            names[i].clone()
        })
    }
}

/// Appends one matched pair of lines, joined with what came before if that was of its kind.
fn push(ops: &mut Vec<DiffOp>, old_index: usize, new_index: usize, same: bool) {
    match ops.last_mut() {
        Some(DiffOp::Equal { len, .. }) if same => *len += 1,
        Some(DiffOp::Replace { old_len, new_len, .. }) if !same => {
            *old_len += 1;
            *new_len += 1;
        }
        _ if same => ops.push(DiffOp::Equal { old_index, new_index, len: 1 }),
        _ => ops.push(DiffOp::Replace { old_index, old_len: 1, new_index, new_len: 1 }),
    }
}

fn write_hunk(
    out: &mut String,
    old: &[Line<'_>],
    new: &[Line<'_>],
    matching: &Matching<'_>,
    group: &[DiffOp],
) {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
    let range = |start: usize, end: usize| format!("{},{}", start + 1, end - start);
    let _ = writeln!(
        out,
        "@@ -{} +{} @@",
        range(first.old_range().start, last.old_range().end),
        range(first.new_range().start, last.new_range().end)
    );
    for op in group {
        if let DiffOp::Equal { .. } = op {
            op.new_range().for_each(|at| {
                let _ = writeln!(out, " {}", new[at].text);
            });
            continue;
        }
        for at in op.old_range() {
            let _ = writeln!(out, "-{}", matching.old_line(at, &old[at]));
        }
        for at in op.new_range() {
            let _ = writeln!(out, "+{}", new[at].text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_line_does_not_change_those_it_renumbers() {
        let before = "v0 = neg %x\nv1 = exp %x\nv2 = add v1, v1\nv3 = mul v2, v0\nret v3\n";
        let after = "v0 = exp %x\nv1 = add v0, v0\nv2 = mul v1, v0\nret v2\n";
        let diff = unified_diff(before, after, "a", "b");
        let expected = "--- a\n+++ b\n@@ -1,5 +1,4 @@\n-v0' = neg %x\n v0 = exp %x\n v1 = add v0, v0\n\
                        -v2 = mul v1, v0'\n+v2 = mul v1, v0\n ret v2\n";
        assert_eq!(diff, expected);
        assert_eq!(unified_diff(before, before, "a", "b"), "");
    }

    #[test]
    fn names_in_strings_are_text() {
        let diff = unified_diff("v0 = \"w1\"\n", "v0 = \"w2\"\n", "a", "b");
        assert_eq!(diff, "--- a\n+++ b\n@@ -1,1 +1,1 @@\n-v0' = \"w1\"\n+v0 = \"w2\"\n");
    }
}
