//! Machine code with where it came from.

use serde::{Deserialize, Serialize};

/// Versions of NVRTC whose code is refused and compiled again, with the reason. There is none so
/// far.
const REFUSED: &[((u32, u32), &str)] = &[];

/// Machine code of one kernel source.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Code {
    /// The version of NVRTC that made it.
    pub nvrtc: (u32, u32),
    /// An ELF file for one architecture.
    pub cubin: Vec<u8>,
}

impl Code {
    /// Its bytes in a store.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        postcard::to_allocvec(self).map_err(|e| e.to_string())
    }

    /// The code of an entry of a store, where it can be used with a driver of this major version, if that
    /// is known.
    ///
    /// # Errors
    /// A sentence, when the bytes are of something else or the code can't be used.
    pub fn from_bytes(bytes: &[u8], driver_major: Option<u32>) -> Result<Self, String> {
        let code: Self = postcard::from_bytes(bytes).map_err(|e| e.to_string())?;
        code.check(driver_major)?;
        Ok(code)
    }

    /// That it can be used, with a driver of this major version where that is known.
    pub(super) fn check(&self, driver_major: Option<u32>) -> Result<(), String> {
        self.check_against(REFUSED, driver_major)
    }

    fn check_against(
        &self,
        refused: &[((u32, u32), &str)],
        driver_major: Option<u32>,
    ) -> Result<(), String> {
        let (major, minor) = self.nvrtc;
        if !self.cubin.starts_with(b"\x7fELF") {
            return Err("it holds no machine code".to_owned());
        }
        if let Some((_, reason)) = refused.iter().find(|(version, _)| *version == self.nvrtc) {
            return Err(format!("NVRTC {major}.{minor} made it: {reason}"));
        }
        match driver_major {
            Some(driver) if major > driver => {
                Err(format!("NVRTC {major}.{minor} made it, and the driver is of CUDA {driver}"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_a_refused_or_too_new_version_is_not_used() {
        let code = Code { nvrtc: (13, 0), cubin: b"\x7fELF code".to_vec() };
        let bytes = code.to_bytes().unwrap();
        assert_eq!(Code::from_bytes(&bytes, None), Ok(code.clone()));
        assert_eq!(Code::from_bytes(&bytes, Some(13)), Ok(code.clone()));
        assert!(Code::from_bytes(&bytes, Some(12)).unwrap_err().contains("CUDA 12"));
        let refused = [((13, 0), "it drops stores")];
        let error = code.check_against(&refused, None).unwrap_err();
        assert_eq!(error, "NVRTC 13.0 made it: it drops stores");
        assert_eq!(Code { nvrtc: (13, 1), ..code.clone() }.check_against(&refused, None), Ok(()));
        assert!(
            Code { cubin: b"text".to_vec(), ..code }
                .to_bytes()
                .is_ok_and(|bytes| { Code::from_bytes(&bytes, None).is_err() })
        );
    }
}
