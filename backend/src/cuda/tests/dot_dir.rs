//! Captured graphs as files.

use super::fixture::{artifact, kernel, opened};
use super::*;

#[test]
fn captured_graphs_are_written_where_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let dot_dir = folder.path().join("deep/graphs");
    let options = CudaOptions { dot_dir: Some(dot_dir.clone()), ..CudaOptions::default() };
    let mut f = opened(options);
    let program =
        f.bind(&artifact(&[("first", kernel("first", false))], PieceSize::General(64)), "p0");
    f.device.capture("T=4", &[&program.unwrap()], &[4]).unwrap();
    assert!(dot_dir.join("T-4.dot").is_file());
    let options = CudaOptions { dot_dir: Some(dot_dir.join("T-4.dot")), ..CudaOptions::default() };
    let driver = Arc::new(SimulatedDriver::new());
    let error =
        CudaDevice::over(driver, LazyNvrtc::missing(), options, OpRegistry::new()).unwrap_err();
    assert!(error.to_string().contains("T-4.dot can't be made"), "{error}");
}
