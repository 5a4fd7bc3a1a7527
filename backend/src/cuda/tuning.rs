//! Which algorithm of the library computes a product.

use super::bound::Work;
use super::device::CudaDevice;
use super::lt::LtProduct;
use super::program::CudaProgram;
use crate::device::DeviceError;
use crate::tuning::{LibraryAlgorithm, LibraryProduct};

impl CudaDevice {
    /// The products of a program that the library computes, each once.
    pub(super) fn products_of_library(
        &self,
        program: &CudaProgram,
        sizes: &[u64],
    ) -> Result<Vec<LibraryProduct>, DeviceError> {
        let mut found: Vec<LibraryProduct> = Vec::new();
        let Some(lt) = &self.lt else { return Ok(found) };
        self.enter()?;
        for launch in &program.launches {
            let Work::Matmul(bound) = &launch.work else { continue };
            let failed = |reason: String| DeviceError::Launch {
                launch: launch.name.clone(),
                label: launch.label.to_string(),
                reason: format!("its algorithms at sizes {sizes:?}: {reason}"),
            };
            let key = bound.product(sizes).map_err(failed)?;
            let product = serde_json::to_string(&key).map_err(|e| failed(e.to_string()))?;
            if found.iter().any(|known| known.product == product) {
                continue;
            }
            let plan = lt.prepare(&key).map_err(|e| failed(e.to_string()))?;
            found.push(LibraryProduct { product, algorithms: plan.candidates.clone() });
        }
        Ok(found)
    }

    /// Takes an algorithm for a product from now on; whether the library accepts it.
    pub(super) fn prefer_algorithm(
        &self,
        product: &str,
        algorithm: LibraryAlgorithm,
    ) -> Result<bool, DeviceError> {
        let key = serde_json::from_str::<LtProduct>(product);
        let (Some(lt), Ok((problem, workspace))) = (&self.lt, key) else {
            return Ok(false);
        };
        self.enter()?;
        let preferred = lt.lock().prefer(&problem, workspace, algorithm);
        preferred.map_err(|e| DeviceError::Driver {
            action: format!("take an algorithm for {problem}"),
            reason: e.to_string(),
        })
    }
}
