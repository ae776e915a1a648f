//! Logical resources: what work asks for and what a worker offers. CPUs and GPUs may be asked for in
//! fractions, memory in bytes, anything else by a name of the user's own. They are an account, not a
//! fence: nothing stops a task from using more.

use crate::error::Error;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// An amount in ten-thousandths, so that fractions add up exactly. May be negative in an account.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Amount(pub i64);

impl Amount {
    /// One whole.
    pub const ONE: Amount = Amount(10_000);
    /// Nothing.
    pub const ZERO: Amount = Amount(0);

    /// So many wholes.
    pub const fn whole(count: u32) -> Amount {
        Amount(count as i64 * 10_000)
    }

    /// The nearest amount to `value`, which must be finite, not negative and below a billion.
    pub fn from_f64(value: f64) -> Result<Amount, Error> {
        if !(0.0..1e9).contains(&value) {
            return Err(Error::invalid(format!(
                "{value} is not an amount of a resource: expected a number from 0 up to 1e9"
            )));
        }
        Ok(Amount((value * 10_000.0).round() as i64))
    }

    /// As a number.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 10_000.0
    }

    /// Whether nothing is left over beyond wholes.
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
    /// GPUs: a fraction below one shares a GPU, more must be whole.
    pub gpu: Amount,
    /// Bytes of memory.
    pub memory: u64,
    /// Anything else, by name. Shared, since many tasks ask for the same.
    pub custom: Option<Arc<BTreeMap<Arc<str>, Amount>>>,
}

impl Resources {
    /// One logical CPU, what a task takes unless it says otherwise.
    pub fn one_cpu() -> Resources {
        Resources { cpu: Amount::ONE, ..Resources::default() }
    }

    /// So many whole CPUs.
    pub fn cpus(count: u32) -> Resources {
        Resources { cpu: Amount::whole(count), ..Resources::default() }
    }

    /// So many GPUs besides.
    pub fn with_gpus(mut self, gpu: Amount) -> Resources {
        self.gpu = gpu;
        self
    }

    /// So many bytes of memory besides.
    pub fn with_memory(mut self, bytes: u64) -> Resources {
        self.memory = bytes;
        self
    }

    /// So much of a resource of the user's own besides.
    pub fn with_custom(mut self, name: &str, amount: Amount) -> Resources {
        let mut custom = self.custom.as_deref().cloned().unwrap_or_default();
        custom.insert(name.into(), amount);
        self.custom = Some(Arc::new(custom));
        self
    }

    /// Both together.
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

    /// The larger amount of each resource.
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

    /// What is asked for by name, without what is asked for in the amount of 0.
    pub fn custom(&self) -> impl Iterator<Item = (&Arc<str>, Amount)> {
        self.custom
            .iter()
            .flat_map(|map| map.iter())
            .map(|(name, amount)| (name, *amount))
            .filter(|(_, amount)| amount.0 > 0)
    }

    /// Says what is wrong with this as a demand.
    pub fn validate(&self) -> Result<(), Error> {
        if self.gpu > Amount::ONE && !self.gpu.is_whole() {
            return Err(Error::invalid(format!(
                "{} GPUs cannot be assigned: ask for a fraction below 1, or for a whole number",
                self.gpu
            )));
        }
        let mut custom = self.custom.iter().flat_map(|map| map.values());
        if self.cpu.0 < 0 || self.gpu.0 < 0 || custom.any(|amount| amount.0 < 0) {
            return Err(Error::invalid("a resource cannot be asked for in a negative amount"));
        }
        let most = Amount(1_000_000_000 * Amount::ONE.0);
        let mut custom = self.custom.iter().flat_map(|map| map.values());
        if self.cpu > most || self.gpu > most || custom.any(|amount| *amount > most) {
            return Err(Error::invalid("a resource cannot be had in an amount above 1e9"));
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
