use super::*;
use piecewise_backend::compiler::CompilerOptions;
use piecewise_backend::cuda::{Arch, CudaLibrary, LibraryError};

#[test]
fn devices_come_back_as_they_are_written() {
    for text in ["cpu", "auto", "cuda:0", "cuda:3", "cuda:sm_90a"] {
        assert_eq!(text.parse::<DeviceSpec>().map(|d| d.to_string()), Ok(text.to_owned()));
    }
    assert_eq!("cuda".parse(), Ok(DeviceSpec::Cuda(0)));
    assert_eq!("cuda:sm_90".parse(), Ok(DeviceSpec::Arch(Arch::HOPPER)));
    for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:sm_", "cuda:sm_80a", "cpu:0", "cuda:x"] {
        assert!(text.parse::<DeviceSpec>().is_err(), "{text}");
    }
}

#[test]
fn architectures_go_by_every_name_that_they_have_and_old_ones_are_refused_by_theirs() {
    for (text, number) in [("sm_100a", 100), ("sm_100f", 100), ("sm_120a", 120), ("sm_121", 121)] {
        let arch = DeviceSpec::Arch(Arch { number });
        assert_eq!(format!("cuda:{text}").parse(), Ok(arch), "{text}");
    }
    for text in ["sm_75", "sm_70"] {
        let refused = format!("cuda:{text}").parse::<DeviceSpec>().unwrap_err();
        assert!(refused.starts_with(&format!("`{text}` is too old")), "{refused}");
        assert!(refused.contains("sm_80 and later"), "{refused}");
    }
    for text in ["sm_90f", "sm_100x", "sm_a", "sm_", "sm_9"] {
        let refused = format!("cuda:{text}").parse::<DeviceSpec>().unwrap_err();
        assert!(refused.starts_with(&format!("`{text}` is no architecture")), "{refused}");
    }
    let refused = DeviceSpec::Arch(Arch { number: 75 }).open(1).unwrap_err();
    assert!(refused.to_string().contains("sm_75"), "{refused}");
}

/// A machine without this library.
fn without(library: CudaLibrary) -> CudaProbe {
    let missing = || LibraryError::NotFound { library, tried: "nothing".to_owned() };
    let mut probe = CudaProbe::run(&CudaOptions::default());
    match library {
        CudaLibrary::Driver => probe.driver = Err(missing().into()),
        CudaLibrary::Nvrtc => probe.nvrtc = Err(missing().into()),
        CudaLibrary::CublasLt => probe.cublas_lt = Err(missing()),
    }
    probe
}

#[test]
fn without_a_driver_auto_is_the_processor_and_says_why() {
    let (device, reason) = DeviceSpec::Auto.resolve_by(|| without(CudaLibrary::Driver));
    assert_eq!(device, DeviceSpec::Cpu);
    assert!(reason.unwrap().to_string().contains(&CudaLibrary::Driver.to_string()));
    assert_eq!(device.open(1).unwrap().spec(), DeviceSpec::Cpu);
    assert_eq!(DeviceSpec::Cpu.resolve(), (DeviceSpec::Cpu, None));
}

/// Of what is missing a probe says which it is; without a driver at all, that is what is said first.
#[test]
fn what_is_missing_for_a_device_is_an_error_that_names_it() {
    for library in [CudaLibrary::Driver, CudaLibrary::Nvrtc, CudaLibrary::CublasLt] {
        let (device, reason) = DeviceSpec::Auto.resolve_by(|| without(library));
        assert_eq!(device, DeviceSpec::Cpu);
        let expected = [library.to_string(), CudaLibrary::Driver.to_string()];
        let reason = reason.unwrap().to_string();
        assert!(expected.iter().any(|name| reason.contains(name)), "{reason}");
    }
    let arch = DeviceSpec::Arch(Arch { number: 90 }).open(1).unwrap();
    let compiler = arch.compiler(&Arc::new(OpRegistry::builtin()), CompilerOptions::default());
    assert_eq!(compiler.target(), "cuda:sm_90a");
}

/// No machine has so many devices: where there is a driver, it is asked, and its answer is named.
#[test]
fn a_device_that_is_not_there_is_an_error_of_its_number() {
    let error = DeviceSpec::Cuda(300).open(1).unwrap_err();
    assert!(matches!(error, OpenError::Cuda { ordinal: 300, .. }), "{error}");
}
