//! A worker's resource account: its capacity, and how much of each resource is free. Each GPU is
//! counted by itself: a grant names its GPUs by index.

use crate::resources::{Amount, Resources};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The resources that a piece of work holds. Returned with [`ResourceAccount::return_grant`],
/// exactly once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Grant {
    /// The amounts.
    pub resources: Resources,
    /// The granted GPUs, by index: all whole, or a single one in part.
    pub gpus: Vec<u32>,
}

/// The capacity of a worker and the part of it that is free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceAccount {
    capacity: Resources,
    cpu: Amount,
    memory: i64,
    gpus: Vec<Amount>,
    custom: BTreeMap<Arc<str>, Amount>,
}

/// The most GPUs that a worker can have. Further GPUs are not counted.
pub const MAX_GPUS: i64 = 4096;

impl ResourceAccount {
    /// Creates an account in which all of `capacity` is free.
    pub fn new(capacity: Resources) -> ResourceAccount {
        ResourceAccount {
            cpu: capacity.cpu,
            memory: i64::try_from(capacity.memory).unwrap_or(i64::MAX),
            gpus: vec![Amount::ONE; (capacity.gpu.0 / Amount::ONE.0).clamp(0, MAX_GPUS) as usize],
            custom: capacity.custom().map(|(name, amount)| (name.clone(), amount)).collect(),
            capacity,
        }
    }

    /// Returns the capacity.
    pub fn capacity(&self) -> &Resources {
        &self.capacity
    }

    /// Returns the free CPUs. Negative while tasks that were blocked have resumed on CPUs lent to
    /// others.
    pub fn free_cpu(&self) -> Amount {
        self.cpu
    }

    /// Returns the free GPUs, with fractions added up.
    pub fn free_gpu(&self) -> Amount {
        Amount(self.gpus.iter().map(|gpu| gpu.0).sum())
    }

    /// Returns the free amount of a user-defined resource.
    pub fn free_custom(&self, name: &str) -> Amount {
        self.custom.get(name).copied().unwrap_or_default()
    }

    /// Returns the free resources. Overdrawn CPUs and memory count as zero.
    pub fn free(&self) -> Resources {
        let custom: BTreeMap<_, _> =
            self.custom.iter().map(|(name, amount)| (name.clone(), *amount)).collect();
        Resources {
            cpu: self.cpu.max(Amount::ZERO),
            gpu: self.free_gpu(),
            memory: self.memory.max(0) as u64,
            custom: (!custom.is_empty()).then(|| Arc::new(custom)),
        }
    }

    /// Returns whether `demand` would fit if nothing were granted.
    pub fn could_ever_fit(&self, demand: &Resources) -> bool {
        let capacity = &self.capacity;
        let custom = |name: &Arc<str>| {
            capacity
                .custom
                .as_ref()
                .and_then(|custom| custom.get(name))
                .copied()
                .unwrap_or_default()
        };
        capacity.cpu >= demand.cpu
            && capacity.gpu >= demand.gpu
            && capacity.memory >= demand.memory
            && demand.custom().all(|(name, amount)| custom(name) >= amount)
    }

    /// Returns whether `demand` fits now. Nothing fits while the CPUs are overdrawn.
    pub fn fits(&self, demand: &Resources) -> bool {
        self.cpu >= demand.cpu.max(Amount::ZERO)
            && (demand.memory == 0 || self.memory >= 0 && self.memory as u64 >= demand.memory)
            && self.fits_gpus(demand.gpu)
            && demand.custom().all(|(name, amount)| self.free_custom(name) >= amount)
    }

    fn fits_gpus(&self, demand: Amount) -> bool {
        if demand == Amount::ZERO {
            true
        } else if demand < Amount::ONE {
            self.gpus.iter().any(|free| *free >= demand)
        } else {
            let whole = self.gpus.iter().filter(|free| **free == Amount::ONE).count() as i64;
            whole * Amount::ONE.0 >= demand.0
        }
    }

    /// Grants `demand`, if it fits. A fraction of a GPU comes from the fullest GPU that has room
    /// for it.
    pub fn take(&mut self, demand: &Resources) -> Option<Grant> {
        if !self.fits(demand) {
            return None;
        }
        let mut gpus = Vec::new();
        if demand.gpu >= Amount::ONE {
            let whole = (demand.gpu.0 / Amount::ONE.0) as usize;
            let free = self.gpus.iter_mut().enumerate().filter(|(_, free)| **free == Amount::ONE);
            for (index, free) in free.take(whole) {
                *free = Amount::ZERO;
                gpus.push(index as u32);
            }
        } else if demand.gpu > Amount::ZERO {
            let fullest = self.gpus.iter_mut().enumerate().filter(|(_, free)| **free >= demand.gpu);
            let (index, free) = fullest.min_by_key(|(_, free)| **free).expect("it fits");
            free.0 -= demand.gpu.0;
            gpus.push(index as u32);
        }
        self.move_plain(demand, -1);
        Some(Grant { resources: demand.clone(), gpus })
    }

    /// Returns a grant to the account.
    pub fn return_grant(&mut self, grant: &Grant) {
        let part =
            if grant.resources.gpu < Amount::ONE { grant.resources.gpu } else { Amount::ONE };
        for index in &grant.gpus {
            self.gpus[*index as usize].0 += part.0;
        }
        self.move_plain(&grant.resources, 1);
    }

    /// Takes the resources of a grant, even if that overdraws the account. Used to check accounts,
    /// and to mirror the grants that another account made.
    pub(crate) fn charge(&mut self, grant: &Grant) {
        let part =
            if grant.resources.gpu < Amount::ONE { grant.resources.gpu } else { Amount::ONE };
        for index in &grant.gpus {
            if let Some(free) = self.gpus.get_mut(*index as usize) {
                free.0 -= part.0;
            }
        }
        self.move_plain(&grant.resources, -1);
    }

    fn move_plain(&mut self, amounts: &Resources, sign: i64) {
        self.cpu.0 += sign * amounts.cpu.0;
        self.memory += sign * amounts.memory as i64;
        for (name, amount) in amounts.custom() {
            self.custom.get_mut(name).expect("a known resource").0 += sign * amount.0;
        }
    }

    /// Frees the CPUs of a grant while its work waits for other work.
    pub fn lend_cpu(&mut self, grant: &Grant) {
        self.cpu.0 += grant.resources.cpu.0;
    }

    /// Takes the CPUs of a grant back when its work goes on. Does not wait for free CPUs: the
    /// account may be overdrawn.
    pub fn reclaim_cpu(&mut self, grant: &Grant) {
        self.cpu.0 -= grant.resources.cpu.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(value: f64) -> Resources {
        Resources::default().with_gpus(Amount::from_f64(value).unwrap())
    }

    #[test]
    fn fractional_gpu_grants_share_a_gpu_and_whole_grants_get_their_own() {
        let mut account = ResourceAccount::new(gpus(2.0));
        let half = account.take(&gpus(0.5)).unwrap();
        let third = account.take(&gpus(0.3)).unwrap();
        assert_eq!((half.gpus.clone(), third.gpus.clone()), (vec![0], vec![0]));
        assert!(account.take(&gpus(2.0)).is_none());
        let whole = account.take(&gpus(1.0)).unwrap();
        assert_eq!(whole.gpus, [1]);
        assert!(account.take(&gpus(0.6)).is_none(), "0.2 is free on one, nothing on the other");
        for grant in [half, third, whole] {
            account.return_grant(&grant);
        }
        assert_eq!(account, ResourceAccount::new(gpus(2.0)));
    }

    #[test]
    fn a_demand_fits_only_if_each_of_its_resources_fits() {
        let offer = Resources::cpus(2).with_memory(1000).with_custom("disk", Amount::ONE);
        let mut account = ResourceAccount::new(offer.clone());
        assert!(!account.could_ever_fit(&Resources::cpus(3)));
        assert!(!account.could_ever_fit(&Resources::cpus(1).with_custom("tape", Amount::ONE)));
        assert!(account.could_ever_fit(&offer));
        let grant = account.take(&Resources::one_cpu().with_custom("disk", Amount(6_000))).unwrap();
        assert!(!account.fits(&Resources::default().with_custom("disk", Amount(4_001))));
        assert!(
            account
                .fits(&Resources::default().with_custom("disk", Amount(4_000)).with_memory(1000))
        );
        assert!(!account.fits(&Resources::default().with_memory(1001)));
        account.return_grant(&grant);
        assert_eq!(account, ResourceAccount::new(offer));
    }

    #[test]
    fn a_blocked_task_lends_its_cpu_and_takes_it_back_at_once() {
        let mut account = ResourceAccount::new(Resources::cpus(1));
        let first = account.take(&Resources::one_cpu()).unwrap();
        account.lend_cpu(&first);
        let second = account.take(&Resources::one_cpu()).unwrap();
        account.reclaim_cpu(&first);
        assert_eq!(account.free_cpu(), Amount(-10_000));
        assert!(!account.fits(&Resources::default()), "nothing new while overdrawn");
        account.return_grant(&second);
        account.return_grant(&first);
        assert_eq!(account, ResourceAccount::new(Resources::cpus(1)));
    }

    #[test]
    fn invalid_resource_amounts_are_rejected() {
        assert!(
            gpus(1.5).validate().unwrap_err().message().contains("1.5 GPUs cannot be assigned")
        );
        assert!(Amount::from_f64(f64::NAN).is_err());
        assert!(Amount::from_f64(-1.0).is_err());
        assert!(gpus(0.5).validate().is_ok() && gpus(3.0).validate().is_ok());
    }
}
