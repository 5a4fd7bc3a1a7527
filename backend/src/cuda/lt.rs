//! cuBLASLt: plans of matrix products, their candidate algorithms, and which of them is taken.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::context::Context;
use super::driver::Handle;
use super::lt_api::{LtApi, LtError, LtLibrary, bytes_of, call};
use super::lt_handle::LtHandle;
use super::matmul::{ColumnMajor, MatmulProblem};
use crate::tuning::LibraryAlgorithm;
use cudarc::cublaslt::sys as lt;
use piecewise_ir::dtype::DType;
use rustc_hash::FxHashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The library on a device's current context, with the plans made so far.
#[derive(Debug)]
pub(super) struct CublasLt {
    library: LtLibrary,
    pub(super) handle: Arc<LtHandle>,
    plans: FxHashMap<LtProduct, KeptPlan>,
    /// Counts uses, to know which plan was used last.
    uses: u64,
    /// Counts what replaces a plan or the handle, for those who keep them.
    pub(super) version: Arc<AtomicU64>,
}

/// A problem and the bytes of workspace that its algorithm may use.
pub(super) type LtProduct = (MatmulProblem, u64);

/// A problem with everything that a call needs, kept alive.
#[derive(Debug)]
pub(super) struct LtPlan {
    descriptors: Descriptors,
    /// The first is what is taken: what the library would, or what was preferred to it.
    pub(super) candidates: Vec<LibraryAlgorithm>,
    problem: MatmulProblem,
}

// SAFETY: descriptors are host memory that nothing changes after they are made.
unsafe impl Send for LtPlan {}
// SAFETY: as for Send.
unsafe impl Sync for LtPlan {}

#[derive(Debug)]
struct Descriptors {
    api: LtApi,
    operation: lt::cublasLtMatmulDesc_t,
    a: lt::cublasLtMatrixLayout_t,
    b: lt::cublasLtMatrixLayout_t,
    d: lt::cublasLtMatrixLayout_t,
    preference: lt::cublasLtMatmulPreference_t,
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let api = &self.api;
        // SAFETY: each was created by the library or is null, and is destroyed once.
        unsafe {
            if !self.operation.is_null() {
                (api.cublasLtMatmulDescDestroy)(self.operation);
            }
            for layout in [self.a, self.b, self.d] {
                if !layout.is_null() {
                    (api.cublasLtMatrixLayoutDestroy)(layout);
                }
            }
            if !self.preference.is_null() {
                (api.cublasLtMatmulPreferenceDestroy)(self.preference);
            }
        }
    }
}

/// The library's name of a dtype; it refuses a problem that it has no kernel for.
fn data_type(dtype: DType) -> lt::cudaDataType_t {
    match dtype {
        DType::BF16 => lt::cudaDataType_t::CUDA_R_16BF,
        DType::F16 => lt::cudaDataType_t::CUDA_R_16F,
        DType::F32 => lt::cudaDataType_t::CUDA_R_32F,
        DType::I32 => lt::cudaDataType_t::CUDA_R_32I,
        DType::I64 => lt::cudaDataType_t::CUDA_R_64I,
        DType::U8 | DType::Bool => lt::cudaDataType_t::CUDA_R_8U,
        DType::E4M3 => lt::cudaDataType_t::CUDA_R_8F_E4M3,
        DType::I4 => lt::cudaDataType_t::CUDA_R_4I,
    }
}

impl Descriptors {
    /// Descriptors of a problem. They need no device.
    fn new(api: LtApi, problem: &MatmulProblem, workspace: u64) -> Result<Self, LtError> {
        let mut made = Self {
            api,
            operation: null_mut(),
            a: null_mut(),
            b: null_mut(),
            d: null_mut(),
            preference: null_mut(),
        };
        // Pedantic: f32 operands are multiplied as they are, never as TF32 or split into bf16.
        let compute = match problem.operands {
            DType::F32 => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F_PEDANTIC,
            DType::BF16 | DType::F16 => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            DType::E4M3 => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            DType::I32 | DType::I64 | DType::U8 | DType::Bool | DType::I4 => {
                lt::cublasComputeType_t::CUBLAS_COMPUTE_32I
            }
        };
        let scale = lt::cudaDataType_t::CUDA_R_32F;
        call!(api, problem, cublasLtMatmulDescCreate(&mut made.operation, compute, scale))?;
        let view = problem.library_view();
        for (attribute, matrix) in [
            (lt::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA, &view.a),
            (lt::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB, &view.b),
        ] {
            // CUBLAS_OP_N and CUBLAS_OP_T.
            let transpose = i32::from(matrix.transpose);
            let (value, size) = bytes_of(&transpose);
            call!(
                api,
                problem,
                cublasLtMatmulDescSetAttribute(made.operation, attribute, value, size)
            )?;
        }
        made.a = Self::layout(&api, problem, &view.a)?;
        made.b = Self::layout(&api, problem, &view.b)?;
        made.d = Self::layout(&api, problem, &view.d)?;
        call!(api, problem, cublasLtMatmulPreferenceCreate(&mut made.preference))?;
        use lt::cublasLtMatmulPreferenceAttributes_t as Preference;
        // Sums of a split k are added up in f32, never in the type of the result.
        let reductions: u32 = 2;
        for (attribute, (value, size)) in [
            (Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes_of(&workspace)),
            (Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, bytes_of(&reductions)),
        ] {
            let preference = made.preference;
            call!(
                api,
                problem,
                cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, size)
            )?;
        }
        Ok(made)
    }

    fn layout(
        api: &LtApi,
        problem: &MatmulProblem,
        matrix: &ColumnMajor,
    ) -> Result<lt::cublasLtMatrixLayout_t, LtError> {
        let ColumnMajor { rows, columns, dtype, batch_stride, .. } = *matrix;
        let mut layout = null_mut();
        call!(
            api,
            problem,
            cublasLtMatrixLayoutCreate(&mut layout, data_type(dtype), rows, columns, rows as i64)
        )?;
        if problem.batch > 1 {
            use lt::cublasLtMatrixLayoutAttribute_t as Attribute;
            let (count, stride) = (problem.batch as i32, batch_stride as i64);
            let set = [
                (Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, bytes_of(&count)),
                (Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, bytes_of(&stride)),
            ]
            .into_iter()
            .try_for_each(|(attribute, (value, size))| {
                call!(
                    api,
                    problem,
                    cublasLtMatrixLayoutSetAttribute(layout, attribute, value, size)
                )
            });
            if let Err(error) = set {
                // SAFETY: the layout was created above and is used no more.
                unsafe { (api.cublasLtMatrixLayoutDestroy)(layout) };
                return Err(error);
            }
        }
        Ok(layout)
    }
}

/// Where the operands of one call lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct LtCall {
    pub(super) lhs: u64,
    pub(super) rhs: u64,
    pub(super) out: u64,
    pub(super) workspace: u64,
    pub(super) workspace_bytes: u64,
}

/// The most plans that are kept beside those that were measured: several times what the matmuls of
/// one step have, so that those of a capture are there until it ends.
pub(super) const MOST_PLANS: usize = 2048;

/// A plan, and when it was used.
#[derive(Debug)]
struct KeptPlan {
    plan: Arc<LtPlan>,
    last_use: u64,
    /// Whether its algorithm was chosen by measurement.
    preferred: bool,
}

/// The most candidates that are asked for.
const CANDIDATES: usize = 16;

impl CublasLt {
    /// Goes on in another context of the device: plans and algorithms stay.
    pub(super) fn reopen(&mut self, context: &Arc<Context>) -> Result<(), LtError> {
        self.handle = LtHandle::of_device(context, self.library.api)?;
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Opens the library on a context, which is current.
    pub(super) fn create(context: &Arc<Context>, library: LtLibrary) -> Result<Self, LtError> {
        let handle = LtHandle::of_device(context, library.api)?;
        let (plans, version) = Default::default();
        Ok(Self { library, handle, plans, uses: 0, version })
    }

    pub(super) fn identity(&self) -> String {
        self.library.identity()
    }

    pub(super) fn library_version(&self) -> u64 {
        self.library.version
    }

    /// The plan of a problem; made at its first use, which must lie outside captures.
    pub(super) fn plan(
        &mut self,
        problem: &MatmulProblem,
        workspace: u64,
    ) -> Result<Arc<LtPlan>, LtError> {
        self.uses += 1;
        if let Some(kept) = self.plans.get_mut(&(*problem, workspace)) {
            kept.last_use = self.uses;
            return Ok(kept.plan.clone());
        }
        let api = self.library.api;
        let descriptors = Descriptors::new(api, problem, workspace)?;
        let mut results = Vec::with_capacity(CANDIDATES);
        let mut found: c_int = 0;
        let Descriptors { operation, a, b, d, preference, .. } = descriptors;
        let turn = self.handle.turn();
        call!(
            api,
            problem,
            cublasLtMatmulAlgoGetHeuristic(
                turn.handle(),
                operation,
                a,
                b,
                d,
                d,
                preference,
                CANDIDATES as c_int,
                results.as_mut_ptr(),
                &mut found
            )
        )?;
        drop(turn);
        let found = (found.max(0) as usize).min(CANDIDATES);
        let mut candidates = Vec::with_capacity(found);
        for i in 0..found {
            // SAFETY: the library wrote `found` results, each of which has an algorithm; the
            // status beside it is read as a number, since it may be one that the enum lacks.
            let (algorithm, status) = unsafe {
                let result: *const lt::cublasLtMatmulHeuristicResult_t = results.as_ptr().add(i);
                let status = (&raw const (*result).state).cast::<u32>().read();
                ((*result).algo, status)
            };
            if status == 0 {
                candidates.push(LibraryAlgorithm(algorithm.data));
            }
        }
        if candidates.is_empty() {
            let call = "cublasLtMatmulAlgoGetHeuristic";
            return Err(LtError { call, code: 15, what: problem.to_string() });
        }
        let plan = Arc::new(LtPlan { descriptors, candidates, problem: *problem });
        self.forget_oldest();
        let kept = KeptPlan { plan: plan.clone(), last_use: self.uses, preferred: false };
        self.plans.insert((*problem, workspace), kept);
        Ok(plan)
    }

    /// Makes room for a plan: steps that are launched at their true sizes bring new row counts
    /// without end. What was measured stays.
    fn forget_oldest(&mut self) {
        while self.plans.values().filter(|kept| !kept.preferred).count() >= MOST_PLANS {
            let others = self.plans.iter().filter(|(_, kept)| !kept.preferred);
            let Some((&oldest, _)) = others.min_by_key(|(_, kept)| kept.last_use) else { break };
            self.plans.remove(&oldest);
        }
    }

    /// Takes `algorithm` for a problem from now on; `false` where the library refuses it.
    pub(super) fn prefer(
        &mut self,
        problem: &MatmulProblem,
        workspace: u64,
        algorithm: LibraryAlgorithm,
    ) -> Result<bool, LtError> {
        let plan = self.plan(problem, workspace)?;
        if !self.accepts(&plan, algorithm, workspace) {
            return Ok(false);
        }
        let mut candidates = plan.candidates.clone();
        candidates.retain(|candidate| *candidate != algorithm);
        candidates.insert(0, algorithm);
        let descriptors = Descriptors::new(self.library.api, problem, workspace)?;
        let plan = LtPlan { descriptors, candidates, problem: *problem };
        let kept = KeptPlan { plan: Arc::new(plan), last_use: self.uses, preferred: true };
        self.plans.insert((*problem, workspace), kept);
        self.version.fetch_add(1, Ordering::Release);
        Ok(true)
    }

    fn accepts(&self, plan: &LtPlan, algorithm: LibraryAlgorithm, workspace: u64) -> bool {
        let Descriptors { operation, a, b, d, .. } = plan.descriptors;
        let algorithm = lt::cublasLtMatmulAlgo_t { data: algorithm.0 };
        let mut result = std::mem::MaybeUninit::<lt::cublasLtMatmulHeuristicResult_t>::uninit();
        let checked = call!(
            self.library.api,
            plan.problem,
            cublasLtMatmulAlgoCheck(
                self.handle.turn().handle(),
                operation,
                a,
                b,
                d,
                d,
                &algorithm,
                result.as_mut_ptr()
            )
        );
        // SAFETY: the library wrote the result where the check went well.
        checked.is_ok()
            && unsafe { (&raw const (*result.as_ptr()).workspaceSize).read() } as u64 <= workspace
    }
}

impl LtHandle {
    /// Enqueues a product by the plan's first candidate. It allocates nothing and waits for nothing, so
    /// that it can be captured.
    pub(super) fn enqueue(
        &self,
        plan: &LtPlan,
        at: &LtCall,
        stream: Handle,
    ) -> Result<(), LtError> {
        let Descriptors { operation, a, b, d, .. } = plan.descriptors;
        let algorithm = lt::cublasLtMatmulAlgo_t { data: plan.candidates[0].0 };
        let (alpha, beta) = (1.0f32, 0.0f32);
        let address =
            |address: u64| std::ptr::with_exposed_provenance_mut::<c_void>(address as usize);
        call!(
            self.api,
            plan.problem,
            cublasLtMatmul(
                self.for_launches(),
                operation,
                bytes_of(&alpha).0,
                address(at.rhs).cast_const(),
                a,
                address(at.lhs).cast_const(),
                b,
                bytes_of(&beta).0,
                address(at.out).cast_const(),
                d,
                address(at.out),
                d,
                &algorithm,
                address(at.workspace),
                at.workspace_bytes as usize,
                address(stream).cast()
            )
        )
    }
}
