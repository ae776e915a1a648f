//! Logical resources: what work asks for and what a worker offers. CPUs and GPUs may be asked for
//! in fractions, memory in bytes, and any other resource by a name that the user chooses. They are
//! an account, not a fence: nothing stops a task from using more.

use crate::error::Error;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// An amount in ten-thousandths, so that fractions add up exactly. An account may contain negative
/// amounts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Amount(pub i64);

impl Amount {
    /// One whole unit.
    pub const ONE: Amount = Amount(10_000);
    /// Zero.
    pub const ZERO: Amount = Amount(0);

    /// Returns `count` whole units.
    pub const fn whole(count: u32) -> Amount {
        Amount(count as i64 * 10_000)
    }

    /// Returns the nearest amount to `value`. Fails unless `value` is finite, not negative and
    /// below 1e9.
    pub fn from_f64(value: f64) -> Result<Amount, Error> {
        if !(0.0..1e9).contains(&value) {
            return Err(Error::invalid(format!(
                "{value} is not an amount of a resource: expected a number from 0 up to 1e9"
            )));
        }
        Ok(Amount((value * 10_000.0).round() as i64))
    }

    /// Returns the amount as a floating-point number.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 10_000.0
    }

    /// Returns whether the amount is a whole number of units.
    pub const fn is_whole(self) -> bool {
        self.0 % 10_000 == 0
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_f64())
    }
}

/// Amounts of every kind of resource.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Resources {
    /// Logical CPUs.
    pub cpu: Amount,
    /// GPUs. A fraction below one shares a GPU, more must be whole.
    pub gpu: Amount,
    /// Bytes of memory.
    pub memory: u64,
    /// Any other resource, by name. The map is shared, since many tasks ask for the same.
    pub custom: Option<Arc<BTreeMap<Arc<str>, Amount>>>,
}

impl Resources {
    /// One logical CPU: the default demand of a task.
    pub fn one_cpu() -> Resources {
        Resources { cpu: Amount::ONE, ..Resources::default() }
    }

    /// Returns `count` whole CPUs.
    pub fn cpus(count: u32) -> Resources {
        Resources { cpu: Amount::whole(count), ..Resources::default() }
    }

    /// Sets the number of GPUs.
    pub fn with_gpus(mut self, gpu: Amount) -> Resources {
        self.gpu = gpu;
        self
    }

    /// Sets the bytes of memory.
    pub fn with_memory(mut self, bytes: u64) -> Resources {
        self.memory = bytes;
        self
    }

    /// Sets the amount of a user-defined resource.
    pub fn with_custom(mut self, name: &str, amount: Amount) -> Resources {
        let mut custom = self.custom.as_deref().cloned().unwrap_or_default();
        custom.insert(name.into(), amount);
        self.custom = Some(Arc::new(custom));
        self
    }

    /// Returns the sum of both.
    pub fn plus(&self, other: &Resources) -> Resources {
        let mut custom = self.custom.as_deref().cloned().unwrap_or_default();
        for (name, amount) in other.custom.iter().flat_map(|map| map.iter()) {
            custom.entry(name.clone()).or_default().0 += amount.0;
        }
        Resources {
            cpu: Amount(self.cpu.0 + other.cpu.0),
            gpu: Amount(self.gpu.0 + other.gpu.0),
            memory: self.memory.saturating_add(other.memory),
            custom: (!custom.is_empty()).then(|| Arc::new(custom)),
        }
    }

    /// Returns the larger amount of each resource.
    pub fn max(&self, other: &Resources) -> Resources {
        let mut custom = self.custom.as_deref().cloned().unwrap_or_default();
        for (name, amount) in other.custom() {
            let entry = custom.entry(name.clone()).or_default();
            *entry = (*entry).max(amount);
        }
        Resources {
            cpu: self.cpu.max(other.cpu),
            gpu: self.gpu.max(other.gpu),
            memory: self.memory.max(other.memory),
            custom: (!custom.is_empty()).then(|| Arc::new(custom)),
        }
    }

    /// Returns the user-defined resources, without those whose amount is 0.
    pub fn custom(&self) -> impl Iterator<Item = (&Arc<str>, Amount)> {
        self.custom
            .iter()
            .flat_map(|map| map.iter())
            .map(|(name, amount)| (name, *amount))
            .filter(|(_, amount)| amount.0 > 0)
    }

    /// Fails if this is not a valid demand.
    pub fn validate(&self) -> Result<(), Error> {
        if self.gpu > Amount::ONE && !self.gpu.is_whole() {
            return Err(Error::invalid(format!(
                "{} GPUs cannot be assigned: ask for a fraction below 1, or for a whole number",
                self.gpu
            )));
        }
        let mut custom = self.custom.iter().flat_map(|map| map.values());
        if self.cpu.0 < 0 || self.gpu.0 < 0 || custom.any(|amount| amount.0 < 0) {
            return Err(Error::invalid("the amount of a resource cannot be negative"));
        }
        let most = Amount(1_000_000_000 * Amount::ONE.0);
        let mut custom = self.custom.iter().flat_map(|map| map.values());
        if self.cpu > most || self.gpu > most || custom.any(|amount| *amount > most) {
            return Err(Error::invalid("the amount of a resource cannot exceed 1e9"));
        }
        Ok(())
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.cpu != Amount::ZERO {
            parts.push(format!("cpu {}", self.cpu));
        }
        if self.gpu != Amount::ZERO {
            parts.push(format!("gpu {}", self.gpu));
        }
        if self.memory != 0 {
            parts.push(format!("memory {} MiB", self.memory.div_ceil(1 << 20)));
        }
        parts.extend(self.custom().map(|(name, amount)| format!("{name} {amount}")));
        if parts.is_empty() { f.write_str("nothing") } else { f.write_str(&parts.join(", ")) }
    }
}
