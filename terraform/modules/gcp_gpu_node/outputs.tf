output "instance_id" {
  description = "The machine, `projects/P/zones/Z/instances/NAME`; null when there is none."
  value       = one(google_compute_instance.gpu[*].id)
}

output "zone" {
  description = "Zone of the machine; null when there is none."
  value       = one(google_compute_instance.gpu[*].zone)
}
