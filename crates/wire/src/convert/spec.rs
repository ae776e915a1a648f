//! The specifications of tasks and actors. An absent option has its default.

use super::field::{all, each, millis, optional, or_default, present, required, unknown};
use super::ids::{actor_id, actor_id_bytes, task_id, task_id_bytes};
use crate::v1::{self, budget, retry_on, task_spec};
use marline_core::Error;
use marline_core::spec::{
    ActorOptions, ActorSpec, Budget, CheckpointPolicy, Lifetime, RetryOn, Target, TaskOptions,
    TaskSpec,
};
use std::sync::Arc;
use std::time::Duration;

impl From<Budget> for v1::Budget {
    fn from(budget: Budget) -> v1::Budget {
        let kind = match budget {
            Budget::Times(times) => budget::Kind::Times(times),
            Budget::Unlimited => budget::Kind::Unlimited(true),
        };
        v1::Budget { kind: Some(kind) }
    }
}

impl TryFrom<v1::Budget> for Budget {
    type Error = Error;
    fn try_from(wire: v1::Budget) -> Result<Budget, Error> {
        match present(wire.kind, "Budget.kind")? {
            budget::Kind::Times(times) => Ok(Budget::Times(times)),
            budget::Kind::Unlimited(true) => Ok(Budget::Unlimited),
            budget::Kind::Unlimited(false) => Err(says_nothing("Budget.unlimited")),
        }
    }
}

impl From<RetryOn> for v1::RetryOn {
    fn from(retry_on: RetryOn) -> v1::RetryOn {
        let kind = match retry_on {
            RetryOn::Never => retry_on::Kind::Never(true),
            RetryOn::Any => retry_on::Kind::Any(true),
            RetryOn::Classes(names) => retry_on::Kind::Classes(retry_on::Classes { names }),
        };
        v1::RetryOn { kind: Some(kind) }
    }
}

impl TryFrom<v1::RetryOn> for RetryOn {
    type Error = Error;
    fn try_from(wire: v1::RetryOn) -> Result<RetryOn, Error> {
        match present(wire.kind, "RetryOn.kind")? {
            retry_on::Kind::Never(true) => Ok(RetryOn::Never),
            retry_on::Kind::Any(true) => Ok(RetryOn::Any),
            retry_on::Kind::Classes(classes) => Ok(RetryOn::Classes(classes.names)),
            retry_on::Kind::Never(false) => Err(says_nothing("RetryOn.never")),
            retry_on::Kind::Any(false) => Err(says_nothing("RetryOn.any")),
        }
    }
}

/// Returns the error for a choice that is present and false: a choice is made by setting it to
/// true.
fn says_nothing(field: &str) -> Error {
    Error::invalid(format!(
        "{field} is false, which selects nothing: set it to true or leave it out"
    ))
}

impl From<TaskOptions> for v1::TaskOptions {
    fn from(options: TaskOptions) -> v1::TaskOptions {
        v1::TaskOptions {
            resources: Some(options.resources.into()),
            max_retries: Some(options.max_retries.into()),
            retry_on: Some(options.retry_on.into()),
            retry_delay_ms: Some(millis(options.retry_delay)),
            timeout_ms: options.timeout.map(millis),
            preemptible: Some(options.preemptible),
            durable: options.durable,
        }
    }
}

impl TryFrom<v1::TaskOptions> for TaskOptions {
    type Error = Error;
    fn try_from(wire: v1::TaskOptions) -> Result<TaskOptions, Error> {
        let default = TaskOptions::default();
        let resources = optional(wire.resources, "TaskOptions.resources")?;
        let max_retries = optional(wire.max_retries, "TaskOptions.max_retries")?;
        let retry_on = optional(wire.retry_on, "TaskOptions.retry_on")?;
        Ok(TaskOptions {
            resources: resources.unwrap_or(default.resources),
            max_retries: max_retries.unwrap_or(default.max_retries),
            retry_on: retry_on.unwrap_or(default.retry_on),
            retry_delay: wire.retry_delay_ms.map_or(default.retry_delay, Duration::from_millis),
            timeout: wire.timeout_ms.map(Duration::from_millis).or(default.timeout),
            preemptible: wire.preemptible.unwrap_or(default.preemptible),
            durable: wire.durable,
        })
    }
}

impl From<Target> for task_spec::Target {
    fn from(target: Target) -> task_spec::Target {
        match target {
            Target::Function(name) => task_spec::Target::Function(name.to_string()),
            Target::Method { actor, method } => task_spec::Target::Method(v1::Method {
                actor: actor_id_bytes(actor),
                method: method.to_string(),
            }),
        }
    }
}

impl TryFrom<task_spec::Target> for Target {
    type Error = Error;
    fn try_from(wire: task_spec::Target) -> Result<Target, Error> {
        match wire {
            task_spec::Target::Function(name) => Ok(Target::Function(name.into())),
            task_spec::Target::Method(wire) => Ok(Target::Method {
                actor: actor_id(&wire.actor, "Method.actor")?,
                method: wire.method.into(),
            }),
        }
    }
}

impl From<Arc<TaskSpec>> for v1::TaskSpec {
    fn from(spec: Arc<TaskSpec>) -> v1::TaskSpec {
        // A clone shares the payload's bytes.
        let spec = Arc::unwrap_or_clone(spec);
        v1::TaskSpec {
            id: task_id_bytes(spec.id),
            target: Some(spec.target.into()),
            args: Some(spec.args.into()),
            needs: all(spec.needs),
            holds: all(spec.referents),
            returns: spec.returns,
            stream: spec.stream_window,
            options: Some(Arc::unwrap_or_clone(spec.options).into()),
        }
    }
}

impl TryFrom<v1::TaskSpec> for Arc<TaskSpec> {
    type Error = Error;
    fn try_from(wire: v1::TaskSpec) -> Result<Arc<TaskSpec>, Error> {
        Ok(Arc::new(TaskSpec {
            id: task_id(&wire.id, "TaskSpec.id")?,
            target: required(wire.target, "TaskSpec.target")?,
            args: required(wire.args, "TaskSpec.args")?,
            needs: each(wire.needs, "TaskSpec.needs")?,
            referents: each(wire.holds, "TaskSpec.holds")?,
            returns: wire.returns,
            stream_window: wire.stream,
            options: Arc::new(or_default(wire.options, "TaskSpec.options")?),
        }))
    }
}

impl From<Lifetime> for v1::Lifetime {
    fn from(lifetime: Lifetime) -> v1::Lifetime {
        match lifetime {
            Lifetime::NonDetached => v1::Lifetime::NonDetached,
            Lifetime::Detached => v1::Lifetime::Detached,
        }
    }
}

fn lifetime(number: i32) -> Result<Lifetime, Error> {
    match v1::Lifetime::try_from(number) {
        Ok(v1::Lifetime::Unspecified) => Ok(Lifetime::default()),
        Ok(v1::Lifetime::NonDetached) => Ok(Lifetime::NonDetached),
        Ok(v1::Lifetime::Detached) => Ok(Lifetime::Detached),
        Err(_) => Err(unknown("ActorOptions.lifetime", number)),
    }
}

impl From<ActorOptions> for v1::ActorOptions {
    fn from(options: ActorOptions) -> v1::ActorOptions {
        v1::ActorOptions {
            placement: Some(options.placement.into()),
            resources: Some(options.resources.into()),
            max_restarts: Some(options.max_restarts.into()),
            max_task_retries: Some(options.max_task_retries.into()),
            max_concurrency: Some(options.max_concurrency),
            max_pending_calls: Some(options.max_pending_calls),
            lifetime: v1::Lifetime::from(options.lifetime).into(),
            get_if_exists: options.get_if_exists,
            preemptible: Some(options.preemptible),
            idle_ttl_ms: options.idle_ttl.map(millis),
            checkpoints: options.checkpoints.map(|terms| v1::Checkpoints {
                every_calls: terms.every_calls,
                interval_ms: terms.interval.map(millis),
            }),
        }
    }
}

impl TryFrom<v1::ActorOptions> for ActorOptions {
    type Error = Error;
    fn try_from(wire: v1::ActorOptions) -> Result<ActorOptions, Error> {
        let default = ActorOptions::default();
        let placement = optional(wire.placement, "ActorOptions.placement")?;
        let resources = optional(wire.resources, "ActorOptions.resources")?;
        let max_restarts = optional(wire.max_restarts, "ActorOptions.max_restarts")?;
        let max_task_retries = optional(wire.max_task_retries, "ActorOptions.max_task_retries")?;
        Ok(ActorOptions {
            placement: placement.unwrap_or(default.placement),
            resources: resources.unwrap_or(default.resources),
            max_restarts: max_restarts.unwrap_or(default.max_restarts),
            max_task_retries: max_task_retries.unwrap_or(default.max_task_retries),
            max_concurrency: wire.max_concurrency.unwrap_or(default.max_concurrency),
            max_pending_calls: wire.max_pending_calls.unwrap_or(default.max_pending_calls),
            lifetime: lifetime(wire.lifetime)?,
            get_if_exists: wire.get_if_exists,
            preemptible: wire.preemptible.unwrap_or(default.preemptible),
            idle_ttl: wire.idle_ttl_ms.map(Duration::from_millis).or(default.idle_ttl),
            checkpoints: wire.checkpoints.map(|wire| CheckpointPolicy {
                every_calls: wire.every_calls,
                interval: wire.interval_ms.map(Duration::from_millis),
            }),
        })
    }
}

impl From<Arc<ActorSpec>> for v1::ActorSpec {
    fn from(spec: Arc<ActorSpec>) -> v1::ActorSpec {
        // A clone shares the payload's bytes.
        let spec = Arc::unwrap_or_clone(spec);
        v1::ActorSpec {
            id: actor_id_bytes(spec.id),
            class: spec.class.to_string(),
            args: Some(spec.args.into()),
            needs: all(spec.needs),
            holds: all(spec.referents),
            name: spec.name.map(|name| name.to_string()),
            namespace: spec.namespace.to_string(),
            options: Some(Arc::unwrap_or_clone(spec.options).into()),
            interface: spec.interface,
        }
    }
}

impl TryFrom<v1::ActorSpec> for Arc<ActorSpec> {
    type Error = Error;
    fn try_from(wire: v1::ActorSpec) -> Result<Arc<ActorSpec>, Error> {
        Ok(Arc::new(ActorSpec {
            id: actor_id(&wire.id, "ActorSpec.id")?,
            class: wire.class.into(),
            args: required(wire.args, "ActorSpec.args")?,
            needs: each(wire.needs, "ActorSpec.needs")?,
            referents: each(wire.holds, "ActorSpec.holds")?,
            name: wire.name.map(Arc::from),
            namespace: wire.namespace.into(),
            options: Arc::new(or_default(wire.options, "ActorSpec.options")?),
            interface: wire.interface,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::sample;
    use marline_core::resources::Resources;

    fn words<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
        result.unwrap_err().message().to_owned()
    }

    #[test]
    fn options_round_trip() {
        for options in [TaskOptions::default(), sample::task_options()] {
            let wire = v1::TaskOptions::from(options.clone());
            assert_eq!(TaskOptions::try_from(wire).unwrap(), options);
        }
        for options in [ActorOptions::default(), sample::actor_options()] {
            let wire = v1::ActorOptions::from(options.clone());
            assert_eq!(ActorOptions::try_from(wire).unwrap(), options);
        }
    }

    #[test]
    fn the_sample_of_task_options_has_no_default() {
        // Each field is named, so that a new one must be considered here.
        let TaskOptions {
            resources,
            max_retries,
            retry_on,
            retry_delay,
            timeout,
            preemptible,
            durable,
        } = sample::task_options();
        let default = TaskOptions::default();
        assert_ne!(resources, default.resources);
        assert_ne!(max_retries, default.max_retries);
        assert_ne!(retry_on, default.retry_on);
        assert_ne!(retry_delay, default.retry_delay);
        assert_ne!(timeout, default.timeout);
        assert_ne!(preemptible, default.preemptible);
        assert_ne!(durable, default.durable);
    }

    #[test]
    fn absent_options_have_their_defaults() {
        let options = TaskOptions::try_from(v1::TaskOptions::default()).unwrap();
        assert_eq!(options, TaskOptions::default());
        assert_eq!(options.resources, Resources::one_cpu());
        assert_eq!((options.max_retries, options.timeout), (Budget::Times(3), None));
        assert_eq!(options.retry_delay, Duration::from_millis(100));
        let options = ActorOptions::try_from(v1::ActorOptions::default()).unwrap();
        assert_eq!(options, ActorOptions::default());
        assert_eq!((options.max_concurrency, options.max_pending_calls), (1, 100_000));
        let wire = v1::TaskSpec { options: None, ..Arc::new(sample::task_spec()).into() };
        let spec = Arc::<TaskSpec>::try_from(wire).unwrap();
        assert_eq!(*spec.options, TaskOptions::default());
        let wire = v1::ActorSpec { options: None, ..Arc::new(sample::actor_spec()).into() };
        let spec = Arc::<ActorSpec>::try_from(wire).unwrap();
        assert_eq!(*spec.options, ActorOptions::default());
    }

    #[test]
    fn an_option_of_zero_is_not_absent() {
        let nothing = Some(Resources::default().into());
        let wire = v1::TaskOptions {
            resources: nothing,
            retry_delay_ms: Some(0),
            timeout_ms: Some(0),
            preemptible: Some(false),
            ..Default::default()
        };
        let options = TaskOptions::try_from(wire).unwrap();
        assert_eq!((options.resources, options.preemptible), (Resources::default(), false));
        assert_eq!((options.retry_delay, options.timeout), (Duration::ZERO, Some(Duration::ZERO)));
    }

    #[test]
    fn malformed_options_are_rejected_by_name() {
        let unset = Some(v1::Budget { kind: None });
        let refused = v1::TaskOptions { max_retries: unset, ..Default::default() };
        let refused = words(TaskOptions::try_from(refused));
        assert!(
            refused.starts_with("TaskOptions.max_retries: Budget.kind is missing"),
            "{refused}"
        );
        let never = v1::Budget { kind: Some(budget::Kind::Unlimited(false)) };
        assert!(words(Budget::try_from(never)).starts_with("Budget.unlimited is false"));
        for (kind, field) in [
            (Some(retry_on::Kind::Never(false)), "RetryOn.never is false"),
            (Some(retry_on::Kind::Any(false)), "RetryOn.any is false"),
            (None, "RetryOn.kind is missing"),
        ] {
            let refused = words(RetryOn::try_from(v1::RetryOn { kind }));
            assert!(refused.starts_with(field), "{refused}");
        }
        let refused = v1::ActorOptions { lifetime: 3, ..Default::default() };
        let refused = words(ActorOptions::try_from(refused));
        assert_eq!(refused, "ActorOptions.lifetime has the unknown value 3");
        let negative = Some(v1::Resources { cpu: -1, ..Default::default() });
        let refused = v1::ActorOptions { placement: negative, ..Default::default() };
        let refused = words(ActorOptions::try_from(refused));
        assert!(refused.starts_with("ActorOptions.placement: Resources.cpu is -1"), "{refused}");
    }

    #[test]
    fn malformed_specs_are_rejected_by_name() {
        let task = || v1::TaskSpec::from(Arc::new(sample::task_spec()));
        let actor = || v1::ActorSpec::from(Arc::new(sample::actor_spec()));
        let short = || bytes::Bytes::from_static(b"short");
        let object = v1::ObjectId { origin: short(), index: 0 };
        let thing = v1::Thing { kind: Some(v1::thing::Kind::Actor(short())) };
        let method = v1::Method { actor: short(), method: "m".into() };
        let method = Some(task_spec::Target::Method(method));
        for (wire, field) in [
            (v1::TaskSpec { id: short(), ..task() }, "TaskSpec.id has 5 bytes; an id has 16"),
            (v1::TaskSpec { target: None, ..task() }, "TaskSpec.target is missing"),
            (v1::TaskSpec { target: method, ..task() }, "TaskSpec.target: Method.actor has 5"),
            (v1::TaskSpec { args: None, ..task() }, "TaskSpec.args is missing"),
            (
                v1::TaskSpec { needs: vec![object.clone()], ..task() },
                "TaskSpec.needs: ObjectId.origin has 5",
            ),
            (
                v1::TaskSpec { holds: vec![thing.clone()], ..task() },
                "TaskSpec.holds: Thing.actor has 5",
            ),
        ] {
            let refused = words(Arc::<TaskSpec>::try_from(wire));
            assert!(refused.starts_with(field), "{refused}");
        }
        for (wire, field) in [
            (v1::ActorSpec { id: short(), ..actor() }, "ActorSpec.id has 5"),
            (v1::ActorSpec { args: None, ..actor() }, "ActorSpec.args is missing"),
            (
                v1::ActorSpec { needs: vec![object], ..actor() },
                "ActorSpec.needs: ObjectId.origin has 5",
            ),
            (v1::ActorSpec { holds: vec![thing], ..actor() }, "ActorSpec.holds: Thing.actor has 5"),
        ] {
            let refused = words(Arc::<ActorSpec>::try_from(wire));
            assert!(refused.starts_with(field), "{refused}");
        }
    }
}
