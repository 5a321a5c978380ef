output "network" {
  description = "Network of the machines, by its self link."
  value       = local.own ? google_compute_network.own[0].self_link : data.google_compute_network.default[0].self_link
}

output "subnetwork" {
  description = "Subnetwork of the machines, by its self link."
  value       = local.own ? google_compute_subnetwork.own[0].self_link : data.google_compute_subnetwork.default[0].self_link
}

output "network_tag" {
  description = "Network tag that every machine must carry: the firewall rules go by it."
  value       = one(google_compute_firewall.closed.target_tags)
}

output "service_account" {
  description = "E-mail of the account that machines run as."
  value       = var.service_account == null ? google_service_account.node[0].email : var.service_account
}

output "image" {
  description = "Machine image."
  value       = var.image
}

output "zones" {
  description = "Zones that a machine may be in; empty: all of the region."
  value       = var.zones
}
