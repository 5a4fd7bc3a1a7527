//! The whole pipeline on decoders as a model builds them: pieces, unique pieces and the arena do
//! not depend on the number of layers.

use crate::common;
use crate::common::decoder::{Layers, build};
use piecewise_ir::dtype::DType::BF16;
use piecewise_ir::module::Module;
use piecewise_ir::verify::verify_module;
use piecewise_passes::check::check_plan;

const WHOLE: &str = "canonicalize,fold,merge_matmuls,cse,dce,fuse,split,destination,plan";

fn compiled(count: usize) -> Module {
    let mut module = build(Layers { count, ..Layers::of(0) }, BF16);
    common::run(&mut module, WHOLE);
    assert_eq!(verify_module(&module), Ok(()));
    assert_eq!(check_plan(&module), Ok(()));
    module
}

#[test]
fn layers_change_neither_unique_pieces_nor_the_arena() {
    let facts = |count| {
        let module = compiled(count);
        let stitch = module.stitch().unwrap();
        assert_eq!(stitch.split_op_count(), count);
        assert!(stitch.piece_count() <= count + 2, "{}", stitch.piece_count());
        let hashes: Vec<[u8; 32]> = stitch.unique.values().map(|u| u.hash).collect();
        (hashes, stitch.unique_pieces().len(), module.layout().unwrap().bytes)
    };
    let two = facts(2);
    assert!(two.1 <= 4, "{} unique pieces", two.1);
    assert_eq!(two, facts(6));
    assert_eq!(two, facts(60));
}
