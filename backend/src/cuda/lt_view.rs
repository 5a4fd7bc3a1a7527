//! What a device launches products of the library by: plans that it has used, kept so that a launch
//! takes no lock.

use super::context::Context;
use super::driver::Handle;
use super::lt::{CublasLt, LtCall, LtPlan, LtProduct, MOST_PLANS};
use super::lt_api::LtError;
use super::lt_handle::LtHandle;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device's view of the library, which devices of one context share.
#[derive(Debug)]
pub(super) struct LtView {
    shared: Arc<Mutex<CublasLt>>,
    /// Of what is shared: another one than what was seen has other plans or another handle.
    version: Arc<AtomicU64>,
    seen: RefCell<Seen>,
}

/// What a device has seen of what is shared.
#[derive(Debug)]
struct Seen {
    version: u64,
    handle: Arc<LtHandle>,
    plans: FxHashMap<LtProduct, Arc<LtPlan>>,
}

impl Seen {
    fn of(lt: &CublasLt) -> Self {
        let version = lt.version.load(Ordering::Acquire);
        Self { version, handle: lt.handle.clone(), plans: FxHashMap::default() }
    }

    fn plan(&mut self, lt: &mut CublasLt, product: &LtProduct) -> Result<Arc<LtPlan>, LtError> {
        let plan = lt.plan(&product.0, product.1)?;
        // Steps that are launched at their true sizes bring new row counts without end.
        if self.plans.len() >= MOST_PLANS {
            self.plans.clear();
        }
        self.plans.insert(*product, plan.clone());
        Ok(plan)
    }
}

fn lock(lt: &Mutex<CublasLt>) -> MutexGuard<'_, CublasLt> {
    lt.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LtView {
    pub(super) fn new(lt: CublasLt) -> Self {
        let (version, seen) = (lt.version.clone(), RefCell::new(Seen::of(&lt)));
        Self { shared: Arc::new(Mutex::new(lt)), version, seen }
    }

    /// The same library, for another device.
    pub(super) fn share(&self) -> Self {
        let seen = RefCell::new(Seen::of(&self.lock()));
        Self { shared: self.shared.clone(), version: self.version.clone(), seen }
    }

    /// What is shared, for as long as nobody else uses it: not for launches.
    pub(super) fn lock(&self) -> MutexGuard<'_, CublasLt> {
        lock(&self.shared)
    }

    /// The same library in another context of the device.
    pub(super) fn reopened(&self, context: &Arc<Context>) -> Result<Self, LtError> {
        self.lock().reopen(context)?;
        Ok(self.share())
    }

    /// Makes the plan of a product, or marks it as used, so that what is shared forgets others first.
    pub(super) fn prepare(&self, product: &LtProduct) -> Result<Arc<LtPlan>, LtError> {
        self.seen.borrow_mut().plan(&mut self.lock(), product)
    }

    /// Enqueues a product. It locks where its plan is not known here, or somebody has replaced one.
    pub(super) fn enqueue(
        &self,
        product: &LtProduct,
        call: &LtCall,
        stream: Handle,
    ) -> Result<(), LtError> {
        let mut seen = self.seen.borrow_mut();
        if seen.version != self.version.load(Ordering::Acquire) {
            *seen = Seen::of(&self.lock());
        }
        if let Some(plan) = seen.plans.get(product) {
            return seen.handle.enqueue(plan, call, stream);
        }
        let plan = seen.plan(&mut self.lock(), product)?;
        seen.handle.enqueue(&plan, call, stream)
    }

    /// The handle that products are enqueued with.
    pub(super) fn handle(&self) -> Arc<LtHandle> {
        self.lock().handle.clone()
    }
}
