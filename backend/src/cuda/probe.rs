//! What of CUDA is on this machine, without touching any of it in a way that could panic.

use super::driver::system::SystemDriver;
use super::driver::{Attribute, Driver};
use super::error::{CallError, CudaError, CudaVersion};
use super::library::{LibraryError, library_dirs};
use super::lt_api::find;
use super::nvrtc::{Arch, Nvrtc, NvrtcError};
use super::options::CudaOptions;

/// The driver as it was found.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct DriverReport {
    /// The file that was loaded: a path, or the name that the loader found it by.
    pub path: String,
    /// The CUDA version that it supports.
    pub version: CudaVersion,
}

/// A GPU as the driver describes it.
#[derive(Clone, PartialEq, Eq, Debug, derive_more::Display, serde::Serialize)]
#[display(
    "{name}, {arch}, {multiprocessors} SMs, {:.1} GiB, {:.0} MiB L2",
    *bytes as f64 / f64::from(1u32 << 30),
    *l2_bytes as f64 / f64::from(1u32 << 20)
)]
pub struct DeviceReport {
    /// From 0, as `cuda:N` names it.
    pub ordinal: u32,
    /// The model, as the driver names it: `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// By its compute capability, as `sm_90`.
    pub arch: Arch,
    /// How many streaming multiprocessors it has.
    pub multiprocessors: u32,
    /// All of its memory in bytes, free or not.
    pub bytes: u64,
    /// Second-level cache in bytes.
    pub l2_bytes: u64,
    /// Shared memory in bytes that one block can ask for.
    pub shared_bytes_per_block: u32,
    /// Shared memory in bytes of a multiprocessor.
    pub shared_bytes_per_multiprocessor: u32,
    /// Whether memory can be mapped at reserved addresses.
    pub virtual_memory: bool,
}

impl DeviceReport {
    pub(super) fn read(driver: &dyn Driver, ordinal: u32) -> Result<Self, CallError> {
        let attribute = |attribute| driver.device_attribute(ordinal, attribute);
        let positive = |wanted| Ok::<_, CallError>(attribute(wanted)?.max(0) as u32);
        let capability =
            (positive(Attribute::CapabilityMajor)?, positive(Attribute::CapabilityMinor)?);
        Ok(Self {
            ordinal,
            name: driver.device_name(ordinal)?,
            arch: Arch::of(capability),
            multiprocessors: positive(Attribute::Multiprocessors)?,
            bytes: driver.device_bytes(ordinal)?,
            l2_bytes: u64::from(positive(Attribute::L2Bytes)?),
            shared_bytes_per_block: positive(Attribute::SharedBytesPerBlock)?,
            shared_bytes_per_multiprocessor: positive(Attribute::SharedBytesPerMultiprocessor)?,
            virtual_memory: attribute(Attribute::VirtualMemory)? != 0,
        })
    }

    /// Whether kernels run on it.
    ///
    /// # Errors
    /// When it is too old or lacks virtual memory management.
    pub fn check(&self) -> Result<(), CudaError> {
        if self.arch < Arch::OLDEST {
            return Err(CudaError::TooOld {
                ordinal: self.ordinal,
                name: self.name.clone(),
                found: self.arch,
                needed: Arch::OLDEST,
            });
        }
        if !self.virtual_memory {
            let (ordinal, name) = (self.ordinal, self.name.clone());
            return Err(CudaError::NoVirtualMemory { ordinal, name });
        }
        Ok(())
    }
}

/// NVRTC as it was found.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct NvrtcReport {
    /// The file that was loaded: a path, or the name that the loader found it by.
    pub path: String,
    /// Major and minor version: `(13, 0)` of 13.0.
    pub version: (u32, u32),
    /// The architectures that it compiles for.
    pub archs: Vec<Arch>,
}

/// cuBLASLt as it was found.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct CublasLtReport {
    /// The file that was loaded: a path, or the name that the loader found it by.
    pub path: String,
    /// Its version as it numbers it: 130100 is 13.1.0.
    pub version: u64,
}

/// What of CUDA is on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaProbe {
    /// What `libcuda` says of itself and its devices, or why it can't be used.
    pub driver: Result<DriverReport, CudaError>,
    /// Its devices; empty without a driver.
    pub devices: Vec<DeviceReport>,
    /// Why devices could not be described, if so.
    pub device_error: Option<CudaError>,
    /// NVRTC, or why nothing can be compiled.
    pub nvrtc: Result<NvrtcReport, NvrtcError>,
    /// cuBLASLt, or why it can't be used.
    pub cublas_lt: Result<CublasLtReport, LibraryError>,
}

/// A line of a probe, for people.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct ProbeRow {
    /// What was looked for: `driver`, `NVRTC`, a device.
    pub what: String,
    /// `false` also for what is there and too old.
    pub works: bool,
    /// What was found, or what is wrong and how to get it.
    pub detail: String,
}

impl CudaProbe {
    /// Looks for the driver, its devices, NVRTC and cuBLASLt where a device that is opened with
    /// `options` would: the libraries in its folders first (see
    /// [`library_dirs`](super::library_dirs)), then by the loader's rules. It changes nothing and
    /// does not fail: what is missing is in the report.
    pub fn run(options: &CudaOptions) -> Self {
        let (dirs, driver) = (library_dirs(&options.library_dirs), SystemDriver::open());
        let (mut devices, mut device_error) = (Vec::new(), None);
        if let Ok(driver) = &driver {
            match read_devices(driver) {
                Ok(found) => devices = found,
                Err(error) => device_error = Some(error),
            }
        }
        let driver = driver
            .map(|driver| DriverReport { path: driver.path.to_owned(), version: driver.version });
        let major = driver.as_ref().ok().map(|driver| driver.version.major());
        let nvrtc = Nvrtc::open(&dirs, major).map(|nvrtc| NvrtcReport {
            path: nvrtc.path().to_owned(),
            version: nvrtc.version(),
            archs: nvrtc.archs().to_vec(),
        });
        let cublas_lt = find(&dirs, major)
            .map(|(library, version)| CublasLtReport { path: library.path.to_owned(), version });
        Self { driver, devices, device_error, nvrtc, cublas_lt }
    }

    /// Whether device `ordinal` will run compiled models: without NVRTC (see
    /// [`Self::check_compiler`]) those whose kernels are in the cache.
    ///
    /// # Errors
    /// The first thing that is missing or too old.
    pub fn check(&self, ordinal: u32) -> Result<&DeviceReport, CudaError> {
        self.driver.as_ref().map_err(Clone::clone)?;
        if let Some(error) = &self.device_error {
            return Err(error.clone());
        }
        let device = self.devices.iter().find(|device| device.ordinal == ordinal);
        let device = device.ok_or_else(|| no_device(ordinal, self.devices.len() as u32))?;
        device.check()?;
        self.cublas_lt.as_ref().map_err(Clone::clone)?;
        Ok(device)
    }

    /// Whether kernels that the cache lacks can be compiled.
    ///
    /// # Errors
    /// Why NVRTC can't be used.
    pub fn check_compiler(&self) -> Result<(), CudaError> {
        self.nvrtc.as_ref().map(drop).map_err(|error| error.clone().into())
    }

    /// The report line by line.
    pub fn rows(&self) -> Vec<ProbeRow> {
        let row =
            |what: &str, works, detail: String| ProbeRow { what: what.to_owned(), works, detail };
        let found = |what: &str, detail: Result<String, String>| {
            row(what, detail.is_ok(), detail.unwrap_or_else(|error| error))
        };
        let driver = self.driver.as_ref().map_err(CudaError::to_string);
        let driver = driver.map(|driver| format!("CUDA {} ({})", driver.version, driver.path));
        let mut rows = vec![found("driver", driver)];
        for device in &self.devices {
            let what = format!("device {}", device.ordinal);
            let checked = device.check().map_err(|error| format!("{device}: {error}"));
            rows.push(found(&what, checked.map(|()| device.to_string())));
        }
        if let Some(error) = &self.device_error {
            rows.push(row("devices", false, error.to_string()));
        } else if self.driver.is_ok() && self.devices.is_empty() {
            rows.push(row("devices", false, no_device(0, 0).to_string()));
        }
        let nvrtc = self.nvrtc.as_ref().map_err(NvrtcError::to_string);
        let nvrtc = nvrtc.map(|nvrtc| {
            // What it knows besides, kernels are not written for.
            let archs = nvrtc.archs.iter().filter(|&&arch| arch >= Arch::OLDEST);
            let archs: Vec<_> = archs.map(Arch::to_string).collect();
            let (major, minor) = nvrtc.version;
            format!("{major}.{minor} for {} ({})", archs.join(" "), nvrtc.path)
        });
        rows.push(found("NVRTC", nvrtc));
        let library = self.cublas_lt.as_ref().map_err(LibraryError::to_string);
        let library = library.map(|library| format!("{} ({})", library.version, library.path));
        rows.push(found("cuBLASLt", library));
        let (runs, detail) = match self.check(0) {
            Ok(_) if self.nvrtc.is_ok() => (true, "models run on cuda:0".to_owned()),
            Ok(_) => (true, FILLED_CACHE_ONLY.to_owned()),
            Err(_) if self.nvrtc.is_ok() => {
                (false, "kernels can be compiled for it; models run on the CPU alone".to_owned())
            }
            Err(_) => (false, "models run on the CPU alone".to_owned()),
        };
        rows.push(row("CUDA", runs, detail));
        rows
    }
}

/// What runs on a device without NVRTC.
const FILLED_CACHE_ONLY: &str = "models run on cuda:0 only from a filled cache, because NVRTC is \
                                 missing: fill it with `piecewise compile` where there is NVRTC";

impl std::fmt::Display for CudaProbe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for row in self.rows() {
            let sign = if row.works { "ok" } else { "--" };
            writeln!(f, "{:<10} {sign}  {}", row.what, row.detail)?;
        }
        Ok(())
    }
}

pub(super) fn no_device(ordinal: u32, count: u32) -> CudaError {
    let hint = match count {
        0 => "; is the GPU visible here (CUDA_VISIBLE_DEVICES, the container's devices)?",
        _ => " (numbered from 0)",
    };
    CudaError::NoDevice { ordinal, count, hint }
}

fn read_devices(driver: &dyn Driver) -> Result<Vec<DeviceReport>, CudaError> {
    let failed = |source| CudaError::Call { action: "describe the CUDA devices".into(), source };
    let count = driver.device_count().map_err(failed)?;
    (0..count).map(|ordinal| DeviceReport::read(driver, ordinal).map_err(failed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::CudaLibrary;

    fn device() -> DeviceReport {
        DeviceReport {
            ordinal: 0,
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            arch: Arch { number: 90 },
            multiprocessors: 132,
            bytes: 85_028_896_768,
            l2_bytes: 50 << 20,
            shared_bytes_per_block: 232_448,
            shared_bytes_per_multiprocessor: 233_472,
            virtual_memory: true,
        }
    }

    fn complete() -> CudaProbe {
        CudaProbe {
            driver: Ok(DriverReport {
                path: "libcuda.so.1".to_owned(),
                version: CudaVersion(13_000),
            }),
            devices: vec![device()],
            device_error: None,
            nvrtc: Ok(NvrtcReport {
                path: "libnvrtc.so.13".to_owned(),
                version: (13, 0),
                archs: [75, 80, 90].map(|number| Arch { number }).to_vec(),
            }),
            cublas_lt: Ok(CublasLtReport {
                path: "libcublasLt.so.13".to_owned(),
                version: 130_100,
            }),
        }
    }

    #[test]
    fn a_complete_machine() {
        let probe = complete();
        assert_eq!(probe.check(0).unwrap().multiprocessors, 132);
        insta::assert_snapshot!(probe);
    }

    fn missing(library: CudaLibrary) -> LibraryError {
        LibraryError::NotFound { library, tried: "a planned fault".to_owned() }
    }

    #[test]
    fn without_nvrtc_models_run_from_a_filled_cache() {
        let mut probe = complete();
        probe.nvrtc = Err(missing(CudaLibrary::Nvrtc).into());
        assert!(probe.check(0).is_ok());
        assert!(matches!(probe.check_compiler(), Err(CudaError::Nvrtc(_))));
        let result = probe.rows().pop().unwrap();
        assert!(result.works && result.detail.contains("only from a filled cache"), "{result:?}");
    }

    #[test]
    fn what_is_missing_is_named_with_its_remedy() {
        let probe = CudaProbe {
            driver: Err(missing(CudaLibrary::Driver).into()),
            devices: Vec::new(),
            device_error: None,
            nvrtc: Err(missing(CudaLibrary::Nvrtc).into()),
            cublas_lt: Err(missing(CudaLibrary::CublasLt)),
        };
        assert!(matches!(probe.check(0), Err(CudaError::Library(_))));
        insta::assert_snapshot!(probe);
    }

    #[test]
    fn devices_that_do_not_fit() {
        let mut probe = complete();
        probe.driver = Err(CudaError::DriverTooOld {
            found: CudaVersion(11_080),
            needed: CudaVersion(12_040),
        });
        insta::assert_snapshot!(probe.check(0).unwrap_err());
        let mut probe = complete();
        probe.devices[0].arch = Arch { number: 70 };
        insta::assert_snapshot!(probe.check(0).unwrap_err());
        insta::assert_snapshot!(probe.check(1).unwrap_err());
        let mut probe = complete();
        probe.devices[0].virtual_memory = false;
        insta::assert_snapshot!(probe.check(0).unwrap_err());
        let mut probe = complete();
        probe.devices.clear();
        insta::assert_snapshot!(probe.check(0).unwrap_err());
    }

    /// Where there is no driver, opening it is an error, never a panic.
    #[test]
    fn probing_this_machine_never_panics() {
        let probe = CudaProbe::run(&CudaOptions::default());
        assert_eq!(probe.rows().last().unwrap().what, "CUDA");
        if probe.driver.is_err() {
            assert!(probe.devices.is_empty());
            assert!(probe.check(0).is_err());
        }
    }
}
