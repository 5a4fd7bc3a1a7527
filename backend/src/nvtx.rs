//! NVTX ranges: what a profiler such as Nsight Systems calls what the host does.
//!
//! A profiler that starts a program names its own library in the environment. It is opened here and
//! handed the tables of the functions of NVTX 3, into which it writes those that it wants to hear of:
//! the protocol of NVIDIA's header, of which no library is part, so that nothing is linked and nothing is
//! called where no profiler listens.

use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The variable in which a profiler names its library.
const INJECTION_VARIABLE: &str = "NVTX_INJECTION64_PATH";

const INJECTION_FUNCTION: &CStr = c"InitializeInjectionNvtx2";

/// Functions of each module, by its number less one: core, CUDA, OpenCL, CUDA runtime, core 2, sync.
/// A profiler may refuse to go on without one of them.
const FUNCTIONS: [usize; 6] = [16, 9, 15, 7, 16, 7];
const MOST_FUNCTIONS: usize = 16;

/// Of the first module.
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;

const CALLBACKS_TABLE: u32 = 1;
const VERSION_TABLE: u32 = 3;
const NVTX_VERSION: u32 = 3;

type Function = *mut c_void;
type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;
type GetExportTable = extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;

/// Where a profiler writes its functions, by module.
static SLOTS: [[AtomicPtr<c_void>; MOST_FUNCTIONS]; FUNCTIONS.len()] =
    [const { [const { AtomicPtr::new(null_mut()) }; MOST_FUNCTIONS] }; FUNCTIONS.len()];

/// Addresses of the slots of each module, whose functions begin at 1, with a null behind them.
struct Tables([[*mut Function; MOST_FUNCTIONS + 1]; FUNCTIONS.len()]);

// SAFETY: the addresses are those of statics, which every thread may know.
unsafe impl Sync for Tables {}
// SAFETY: as above.
unsafe impl Send for Tables {}

static TABLES: OnceLock<Tables> = OnceLock::new();

fn tables() -> &'static Tables {
    TABLES.get_or_init(|| {
        let mut tables = Tables([[null_mut(); MOST_FUNCTIONS + 1]; FUNCTIONS.len()]);
        for ((table, slots), count) in tables.0.iter_mut().zip(&SLOTS).zip(FUNCTIONS) {
            for (entry, slot) in table.iter_mut().zip(slots).take(count).skip(1) {
                *entry = slot.as_ptr();
            }
        }
        tables
    })
}

#[repr(C)]
struct Callbacks {
    bytes: usize,
    module_functions: unsafe extern "C" fn(c_uint, *mut *const *mut Function, *mut c_uint) -> c_int,
}

#[repr(C)]
struct VersionInfo {
    bytes: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { bytes: size_of::<Callbacks>(), module_functions };

static VERSION: VersionInfo = VersionInfo {
    bytes: size_of::<VersionInfo>(),
    version: NVTX_VERSION,
    reserved: 0,
    set_injection_version,
};

extern "C" fn set_injection_version(_: u32) {}

extern "C" fn export_table(table: u32) -> *const c_void {
    match table {
        CALLBACKS_TABLE => (&raw const CALLBACKS).cast(),
        VERSION_TABLE => (&raw const VERSION).cast(),
        _ => std::ptr::null(),
    }
}

unsafe extern "C" fn module_functions(
    module: c_uint,
    table: *mut *const *mut Function,
    size: *mut c_uint,
) -> c_int {
    let module = (module as usize).wrapping_sub(1);
    let Some(&count) = FUNCTIONS.get(module) else { return 0 };
    // SAFETY: the profiler passes null or where it wants the answers.
    unsafe {
        if let Some(table) = table.as_mut() {
            *table = tables().0[module].as_ptr();
        }
        if let Some(size) = size.as_mut() {
            *size = count as c_uint;
        }
    }
    1
}

/// Why no profiler gets ranges.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no profiler hears of NVTX ranges: {library}, which NVTX_INJECTION64_PATH names, {reason}")]
pub struct NvtxError {
    /// The library that was opened, as the variable names it.
    pub library: String,
    /// What it did not do.
    pub reason: String,
}

/// A profiler that listens. It does until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Nvtx {
    push: Push,
    pop: Pop,
}

impl Nvtx {
    /// The profiler that started this process, if one did. It is opened once; one that could not be is tried
    /// again by the next call.
    ///
    /// # Errors
    /// When it names a library that can't be opened, or that does not want ranges.
    pub fn of_environment() -> Result<Option<Self>, NvtxError> {
        static OPENED: Mutex<Option<Nvtx>> = Mutex::new(None);
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let (None, Some(path)) = (*opened, std::env::var_os(INJECTION_VARIABLE)) {
            *opened = Some(Self::open(Path::new(&path))?);
        }
        Ok(*opened)
    }

    /// A profiler by its library.
    ///
    /// # Errors
    /// When it can't be opened, or does not want ranges.
    pub fn open(library: &Path) -> Result<Self, NvtxError> {
        let failed = |reason: String| {
            let library = library.display().to_string();
            NvtxError { library, reason }
        };
        static OPENING: Mutex<()> = Mutex::new(());
        let _one = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in SLOTS.iter().flatten() {
            slot.store(null_mut(), Ordering::Release);
        }
        // SAFETY: a profiler's library is made to be loaded; who sets the variable vouches for it.
        let opened = unsafe { Library::new(library) };
        let opened = opened.map_err(|error| failed(format!("can't be opened: {error}")))?;
        // SAFETY: the function of this name has this signature by the protocol.
        let initialize =
            unsafe { opened.get::<Initialize>(INJECTION_FUNCTION.to_bytes_with_nul()) };
        let initialize =
            initialize.map_err(|error| failed(format!("has no entry for NVTX: {error}")))?;
        // SAFETY: it gets a function that answers by the protocol, on tables that live as long as the
        // process.
        if unsafe { initialize(export_table) } == 0 {
            return Err(failed("refuses".to_owned()));
        }
        // Its functions are called until the process ends.
        std::mem::forget(opened);
        let set = |function: usize| {
            let set = SLOTS[0][function].load(Ordering::Acquire);
            (!set.is_null()).then_some(set)
        };
        let (Some(push), Some(pop)) = (set(RANGE_PUSH), set(RANGE_POP)) else {
            return Err(failed("listens to no ranges".to_owned()));
        };
        // SAFETY: a profiler writes into these slots functions of these signatures, by the protocol.
        let (push, pop) = unsafe {
            (std::mem::transmute::<Function, Push>(push), std::mem::transmute::<Function, Pop>(pop))
        };
        Ok(Self { push, pop })
    }

    /// Begins a range on this thread, inside those that are open; it ends when it is dropped.
    pub fn range(&self, name: &CStr) -> NvtxRange {
        // SAFETY: the library stays loaded, and the name is a string of C.
        unsafe { (self.push)(name.as_ptr()) };
        NvtxRange { pop: self.pop, of_this_thread: std::marker::PhantomData }
    }
}

/// A range of the thread that opened it, which ends where this is dropped.
#[derive(Debug)]
pub struct NvtxRange {
    pop: Pop,
    of_this_thread: std::marker::PhantomData<*const ()>,
}

impl Drop for NvtxRange {
    fn drop(&mut self) {
        // SAFETY: the library stays loaded.
        unsafe { (self.pop)() };
    }
}
