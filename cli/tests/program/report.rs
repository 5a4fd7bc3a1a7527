//! The report page of `inspect --html`: one file, no network, every name as text, the same bytes
//! twice. `tests/browser/report.py` looks at it in a browser.

use crate::support::cli::{error_of, root, stdout_of};
use piecewise_ir::text::parse_graph;
use serde_json::Value;
use std::collections::BTreeSet;

const MODEL: &str = "examples/tiny-qwen3";
const HOSTILE: &str = "tests/browser/hostile.pw";

/// The page of a model.
fn page(model: &str, flags: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let args = ["inspect", "--model", model, "--html", file.to_str().unwrap()];
    stdout_of(&[&args[..], flags].concat());
    std::fs::read_to_string(file).unwrap()
}

/// The JSON in the page, as it stands there.
fn embedded(page: &str) -> &str {
    let start = "<script type=\"application/json\" id=\"data\">";
    page.split(start).nth(1).unwrap().split("</script>").next().unwrap()
}

fn data(page: &str) -> Value {
    serde_json::from_str(embedded(page)).unwrap()
}

fn rows<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap()
}

fn index(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// A folder with the configuration of the example, but so many layers.
fn deep(layers: u64) -> tempfile::TempDir {
    let config = std::fs::read(root().join(MODEL).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["num_hidden_layers"] = layers.into();
    if config["layer_types"].is_array() {
        config["layer_types"] = vec!["full_attention"; usize::try_from(layers).unwrap()].into();
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

#[test]
fn it_is_one_file_that_loads_nothing() {
    let page = page(MODEL, &[]);
    let markup = page.replace(embedded(&page), "");
    for loads in ["src=", "url(", "@import", "fetch(", "XMLHttpRequest", "import(", "<link"] {
        assert!(!markup.contains(loads), "{loads}");
    }
    assert!(!markup.replace("http://www.w3.org/2000/svg", "").contains("://"));
    assert!(markup.contains("Content-Security-Policy\" content=\"default-src 'none';"));
    for unsafe_way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"] {
        assert!(!markup.contains(unsafe_way), "{unsafe_way}");
    }
    for needed in ["<html lang=", "name=\"viewport\"", "prefers-color-scheme: dark", "<noscript>"] {
        assert!(markup.contains(needed), "{needed}");
    }
}

#[test]
fn every_reference_in_the_data_leads_somewhere() {
    let data = data(&page(MODEL, &[]));
    let (steps, unique, values) =
        (rows(&data, "steps"), rows(&data, "unique"), rows(&data, "values"));
    assert_eq!((steps.len(), unique.len()), (14, 5));
    let positions = index(&data["positions"]);
    let mut next = 0;
    for step in steps {
        assert_eq!(index(&step["first"]), next);
        next = index(&step["last"]) + 1;
        let piece = &unique[index(&step["unique"])];
        let operands = rows(step, "operands");
        assert_eq!(operands.len(), rows(piece, "operands").len());
        for (used, operand) in operands.iter().zip(rows(piece, "operands")) {
            let value = &values[index(used)];
            let (kind, is) = (operand["kind"].as_str().unwrap(), value["kind"].as_str().unwrap());
            assert_eq!(kind == "weight", is == "weight", "{operand} {value}");
            assert_eq!(kind == "state", is == "state", "{operand} {value}");
            assert_eq!(operand["ty"], value["ty"]);
        }
    }
    assert_eq!(next, positions);
    let arena = data["arena"]["bytes"].as_u64().unwrap();
    for slot in rows(&data, "slots") {
        assert!(slot["offset"].as_u64().unwrap() + slot["bytes"].as_u64().unwrap() <= arena);
        assert!(slot["first"].as_u64() <= slot["last"].as_u64());
        assert!(index(&slot["last"]) < positions);
        assert_eq!(values[index(&slot["value"])]["bytes"], slot["bytes"]);
    }
    let images = rows(&data, "images");
    let digests: BTreeSet<_> = images.iter().map(|image| image["digest"].as_str()).collect();
    assert_eq!(digests.len(), images.len(), "every image once");
    for piece in unique {
        parse_graph(piece["ir"].as_str().unwrap()).unwrap();
        assert!(piece["error"].is_null() && !rows(piece, "sizes").is_empty());
        for size in rows(piece, "sizes") {
            let launches = rows(size, "launches");
            for key in ["bytes_read", "bytes_written", "weight_bytes"] {
                let sum: u64 = launches.iter().map(|launch| launch[key].as_u64().unwrap()).sum();
                assert_eq!(size[key].as_u64(), Some(sum));
            }
            for launch in launches {
                let image = images.iter().find(|image| image["digest"] == launch["image"]);
                assert_ne!(image.unwrap()["text"], "");
            }
        }
    }
}

/// The nodes are those of the steps, what they read is made before, and each layer is as its equals.
#[test]
fn nodes_and_remarks_are_of_the_plan() {
    let data = data(&page(MODEL, &[]));
    let (steps, nodes) = (rows(&data, "steps"), rows(&data, "nodes"));
    assert_eq!(nodes.len(), index(&data["positions"]));
    for (place, node) in nodes.iter().enumerate() {
        let step = &steps[index(&node["step"])];
        assert!((index(&step["first"])..=index(&step["last"])).contains(&place), "{node}");
        assert!(rows(node, "reads").iter().all(|from| index(from) < place), "{node}");
        assert_eq!(rows(node, "fuses").is_empty(), node["op"] != "region", "{node}");
    }
    let products = nodes.iter().filter(|node| node["op"] == "matmul");
    let up = |layer: usize| {
        let scope = format!("layers.{layer}.mlp");
        let mut found =
            products.clone().filter(move |node| node["scope"].as_str().unwrap().contains(&scope));
        let mut node = found.next().unwrap().clone();
        node["operations"].take()
    };
    assert!(up(0).as_u64().unwrap() > 0 && up(0) == up(5));
    let remarks = rows(&data, "remarks");
    let passes: BTreeSet<_> =
        remarks.iter().map(|remark| remark["pass"].as_str().unwrap()).collect();
    assert!(["fuse", "split"].iter().all(|pass| passes.contains(pass)), "{passes:?}");
    let split: Vec<_> = remarks.iter().filter(|remark| remark["what"] == "split here").collect();
    assert_eq!(split.len(), 1, "six equal layers are one: {split:?}");
    assert_eq!(rows(split[0], "equals").len(), 5);
    assert!(split[0]["where"].as_str().unwrap().contains("layers.0"), "{}", split[0]);
    let text = stdout_of(&["inspect", "--model", MODEL, "--nodes"]);
    let shown = text.split("\nnodes\n").nth(1).unwrap();
    assert!(shown.contains("layers.*.mlp") && shown.contains("region: "), "{shown}");
    assert!(shown.lines().count() < nodes.len() / 2, "equal layers are counted: {shown}");
}

#[test]
fn bytes_are_those_of_the_operands() {
    let data = data(&page(MODEL, &["--capture-num-tokens", "8,"]));
    // The matmul of the first piece: [8, 256] by [512, 256] into [8, 512], all bf16.
    let launch = &data["unique"][0]["sizes"][0]["launches"][1];
    assert_eq!(data["unique"][0]["sizes"][0]["rows"], 1);
    assert_eq!(launch["name"], "matmul v2");
    assert_eq!(launch["weight_bytes"], 512 * 256 * 2);
    assert_eq!(launch["bytes_read"], 512 * 256 * 2 + 256 * 2);
    assert_eq!(launch["bytes_written"], 512 * 2);
}

#[test]
fn names_of_markup_are_text() {
    let page = page(HOSTILE, &[]);
    let json = embedded(&page);
    assert!(!json.contains(['<', '>', '&']), "markup in the data");
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script>").count(), 2);
    assert!(!page.contains("<script>document.title"), "a name in the markup");
    assert!(page.contains("<title>&lt;/script&gt;&lt;script&gt;"));
    let data = data(&page);
    assert_eq!(data["graph"], "</script><script>document.title='owned'</script>");
    let froms: Vec<_> = rows(&data, "values").iter().map(|v| v["from"].as_str().unwrap()).collect();
    assert!(froms.contains(&"a</script><b>&amp;\"'`${1+1}"), "{froms:?}");
    assert!(froms.contains(&"</title>"), "{froms:?}");
}

#[test]
fn an_op_without_an_implementation_leaves_the_rest_of_the_page() {
    let data = data(&page(HOSTILE, &[]));
    let unique = rows(&data, "unique");
    let error = unique[1]["error"].as_str().unwrap();
    assert!(error.contains("any.<mix>&") && error.contains("no implementation"), "{error}");
    assert!(unique[0]["error"].is_null() && !rows(&unique[0], "sizes").is_empty());
}

#[test]
fn the_same_model_gives_the_same_bytes_and_depth_costs_little() {
    assert_eq!(page(HOSTILE, &[]), page(HOSTILE, &[]));
    let folder = deep(36);
    let model = folder.path().to_str().unwrap();
    let deep = page(model, &[]);
    assert_eq!(deep, page(model, &[]));
    assert!(deep.len() < 1 << 20, "{} bytes", deep.len());
    let (deep, shallow) = (data(&deep), data(&page(MODEL, &[])));
    assert_eq!(rows(&deep, "steps").len(), 2 + 2 * 36);
    for shared in ["unique", "images"] {
        assert_eq!(rows(&deep, shared).len(), rows(&shallow, shared).len(), "{shared}");
    }
    let keys = |data: &Value| -> BTreeSet<String> {
        let sizes = rows(data, "unique").iter().flat_map(|piece| rows(piece, "sizes"));
        sizes.map(|size| size["cache_key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&deep), keys(&shallow), "equal pieces are one entry of the cache");
}

#[test]
fn what_can_t_be_shown_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("no/such/page.html");
    let html = ["--html", file.to_str().unwrap()];
    let inspect = |model: &'static str| [&["inspect", "--model", model][..], &html].concat();
    assert!(error_of(&inspect(MODEL)).contains("no/such/page.html"));
    let page = folder.path().join("page.html");
    let early = ["inspect", "--model", MODEL, "--stop-after", "destination", "--html"];
    let early = error_of(&[&early[..], &[page.to_str().unwrap()]].concat());
    assert!(!page.exists(), "a page of nothing");
    assert!(early.contains("leave --stop-after out"), "{early}");
    let flag = error_of(&["inspect", "--model", HOSTILE, "--max-num-tokens", "8"]);
    assert!(flag.contains("--max-num-tokens: ") && flag.contains("says 64"), "{flag}");
}
