//! The report page: a step, its memory and its kernels in one file that needs no network.

use crate::amounts::shown_bytes;
use anyhow::bail;
use piecewise::assembly::Planned;
use piecewise::assembly::plan_view::PlanView;
use serde::Serialize;

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// One script: what is below uses what is above, and the last begins.
const SCRIPT: &str =
    concat!(include_str!("page.js"), include_str!("graph.js"), include_str!("search.js"));

/// What the page's script draws.
#[derive(Serialize)]
struct Data<'a> {
    /// Name and value of what is said first.
    facts: [(&'static str, String); 8],
    #[serde(flatten)]
    plan: &'a PlanView,
}

/// The page of a plan.
///
/// # Errors
/// When the module is not planned to its end, or there is no compiler for its target.
pub(crate) fn page(planned: &Planned) -> anyhow::Result<String> {
    if planned.module().layout().is_none() {
        bail!("this shows a plan, and the pipeline made none; leave --stop-after out");
    }
    let plan = &PlanView::lowered(planned)?;
    let facts = facts(plan, planned.compiler()?.identity());
    let json = in_script(&serde_json::to_string(&Data { facts, plan })?);
    let parts = [
        ("TITLE", in_text(&plan.graph)),
        ("STYLE", STYLE.to_owned()),
        ("DATA", json),
        ("SCRIPT", SCRIPT.to_owned()),
    ];
    Ok(filled(HTML, &parts))
}

fn facts(plan: &PlanView, target: String) -> [(&'static str, String); 8] {
    let bounds: Vec<_> = plan
        .bounds
        .iter()
        .map(|(symbol, max)| format!("{symbol}\u{a0}\u{2264}\u{a0}{max}"))
        .collect();
    [
        ("target", target),
        ("pieces", format!("{} ({} unique)", plan.pieces, plan.unique_pieces)),
        ("split ops", plan.split_ops.to_string()),
        ("arena", shown_bytes(plan.arena.bytes)),
        ("weights", shown_bytes(plan.memory.weights)),
        ("states", shown_bytes(plan.memory.states)),
        ("graph mode", plan.graph_mode.to_owned()),
        ("bounds", bounds.join(", ")),
    ]
}

/// The template with `{{NAME}}` replaced; what replaces a name is not looked at again.
fn filled(template: &str, parts: &[(&str, String)]) -> String {
    let mut pieces = template.split("{{");
    let mut page = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or(("", piece));
        if let Some((_, text)) = parts.iter().find(|(known, _)| *known == name) {
            page.push_str(text);
        }
        page.push_str(rest);
    }
    page
}

/// JSON that can't end the script element it is in: it has no character of markup.
fn in_script(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out
}

/// Escapes what HTML would read as its own.
fn in_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_its_element() {
        let hostile = "</script><script>alert('&')</script>\u{2028}\"<!--";
        let json = in_script(&serde_json::to_string(hostile).unwrap());
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
        assert_eq!(in_text("<a title=\"&\">"), "&lt;a title=&quot;&amp;&quot;&gt;");
    }

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        let parts = [("A", "{{B}}".to_owned()), ("B", "b".to_owned())];
        assert_eq!(filled("<{{A}}|{{B}}>", &parts), "<{{B}}|b>");
    }
}
