//! scratch
use piecewise::models::*;
use piecewise_ir::dtype::DType;
use piecewise_ir::module::Module;
use piecewise_passes::*;
use std::path::Path;
fn main() {
    let config = DecoderConfig::load(Path::new("examples/tiny-qwen3")).unwrap();
    let limits = DecoderLimits {
        activations: DType::F32,
        max_tokens: 64,
        max_rows: 8,
        max_sequences: 8,
        max_length: 2048,
        kv_rows: 4096,
    };
    let graph = decoder(&config, &limits, |_| None).unwrap();
    if let Err(d) = piecewise_ir::verify::verify_graph(&graph) {
        println!("{d}");
    }
    let mut module = Module::new(graph);
    let pipeline: Pipeline = Pipeline::parse(&std::env::args().nth(1).unwrap()).unwrap();
    let registry = Registry::standard();
    let mut m = PassManager::new(&pipeline, &registry).unwrap();
    let r = m.run(&mut module, &mut PassContext::default());
    match r {
        Ok(r) => {
            for p in &r.passes {
                eprintln!("{} {:?} {:?}", p.name, p.report.total(), p.elapsed);
            }
        }
        Err(e) => eprintln!("{e}"),
    }
    println!("{}", piecewise_ir::text::print_module(&module));
}
